"""Ends a program that is about to compute without the accelerator that it is to have.

Python imports this module when it starts (docs.python.org, "site"), because the image's PYTHONPATH
names its folder. It costs a dictionary's look-up where nothing is expected. Otherwise the first
import of a framework asks the guard, and nothing before it does: a program that only converts data
needs no GPU. When TensorFlow has listed its devices, the guard compares them with what is expected.
A fault of the guard never ends a program.
"""

# Paths are text here: pathlib costs 5 ms. A finder's arguments are given.
# ruff: noqa: PTH100, PTH120, ARG002
import os
import sys

_VARIABLE = "TRAINING_ACCELERATOR"
_FRAMEWORKS = frozenset({"tensorflow", "jax", "torch", "cupy", "onnxruntime"})
_CONTEXT = "tensorflow.python.eager.context"
_LOOKED_AT = "TRAINING_ACCELERATOR_LOOKED_AT"
_USAGE = 2


class _Before:
    """A finder that finds nothing, and is asked before every other one."""

    asked = False
    first = _LOOKED_AT not in os.environ  # a process that this one starts may have no GPU

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in _FRAMEWORKS and not self.asked:
            self.asked = True
            _ask()
        elif name == _CONTEXT and self.first:
            return _watched(name, path)  # type: ignore[no-untyped-call]
        return None


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


def _watched(name, path):  # type: ignore[no-untyped-def]
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
            framework.watch(module, os.environ, lambda gpus: _refuse(unseen(text, gpus)))
        except Exception:
            return

    spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
    return spec


def _next_one() -> None:
    """Run the sitecustomize that this one hides, of the program, the base or the distribution."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        from importlib.util import module_from_spec

        found.loader.exec_module(module_from_spec(found))


if os.environ.get(_VARIABLE, "").strip() not in ("", "auto", "none"):
    sys.meta_path.insert(0, _Before())
_next_one()
