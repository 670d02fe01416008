"""Ends a program that is about to compute without the accelerator that it is to have.

Python imports this module when it starts (docs.python.org, "site"), because the image's PYTHONPATH
names its folder. It costs a dictionary's look-up where nothing is expected. Otherwise the first
import of a framework asks the guard, and nothing before it does: a program that only converts data
needs no GPU. When the framework has listed its devices, the guard compares them with what is
expected; where it lists them, a module for each framework says (training_image_devices/).
In a cluster, the framework's own variables are set from those of the service. A fault of the hook
never ends a program.
"""

# Paths are text here: pathlib costs 5 ms. A finder's arguments are given.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123, PTH208, ARG002
import os
import sys

_VARIABLE = "TRAINING_ACCELERATOR"
_DEVICES = "training_image_devices"
_OTHERS = ("cupy", "onnxruntime")  # what computes on a GPU and is no framework
_LOOKED_AT = "TRAINING_ACCELERATOR_LOOKED_AT"
_HERE = os.path.dirname(os.path.abspath(__file__))
_USAGE = 2


class _Before:
    """A finder that finds nothing, and is asked before every other one."""

    def __init__(self) -> None:
        names = os.listdir(os.path.join(_HERE, _DEVICES))
        self.frameworks = {name[:-3] for name in names if name.endswith(".py")}
        self.listing: dict[str, object] = {}  # the module that lists devices: what is known of it
        self.asked = False
        self.first = _LOOKED_AT not in os.environ  # a process that this one starts may have no GPU

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in self.frameworks or name in _OTHERS:
            if not self.asked:
                self.asked = True
                _ask()
            if name in self.frameworks:
                self.frameworks.discard(name)
                self.know(name)
        elif name in self.listing and self.first:
            return _watched(name, path, self.listing[name])  # type: ignore[no-untyped-call]
        return None

    def know(self, name: str) -> None:
        from importlib import import_module

        try:
            devices = import_module(f"{_DEVICES}.{name}")
            self.listing[devices.MODULE] = devices
        except Exception:
            return


def _ask() -> None:
    try:
        from training_image_guard import refusal  # type: ignore[import-not-found]

        cause = refusal(os.environ)
    except Exception:
        return
    _refuse(cause)


def _refuse(cause: str) -> None:
    if cause:
        sys.stdout.flush()
        sys.stderr.write(f"training-image-factory: {cause}\n")
        sys.stderr.flush()
        os._exit(_USAGE)


def _watched(name, path, devices):  # type: ignore[no-untyped-def]
    """Return the module's spec, with a loader that watches its list of devices."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return None
    load = spec.loader.exec_module

    def load_and_watch(module):  # type: ignore[no-untyped-def]
        load(module)
        try:
            from training_image_guard import framework, unseen

            text = os.environ.get(_VARIABLE, "").strip()
            refuse = lambda kind, count: _refuse(unseen(text, count, kind))  # noqa: E731
            framework.watch(module, devices, os.environ, refuse)
        except Exception:
            return

    spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
    return spec


def _join() -> None:
    """Set the variables by which the framework finds the other processes, if it has its own."""
    try:
        import json

        from training_image_rendezvous import FILE, variables  # type: ignore[import-not-found]

        with open(os.path.join(_HERE, FILE)) as wanted:
            os.environ.update(variables(json.load(wanted), os.environ))
    except Exception:
        return


def _next_one() -> None:
    """Run the sitecustomize that this one hides, of the program, the base or the distribution."""
    from importlib.machinery import PathFinder

    others = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        from importlib.util import module_from_spec

        found.loader.exec_module(module_from_spec(found))


if os.environ.get(_VARIABLE, "").strip() not in ("", "auto", "none"):
    sys.meta_path.insert(0, _Before())
if "TF_CONFIG" in os.environ or "CLUSTER_SPEC" in os.environ:
    _join()
_next_one()
