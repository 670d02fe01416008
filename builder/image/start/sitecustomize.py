"""Ends a program that is about to compute without the accelerator that it is to have.

Python imports this module when it starts (docs.python.org, "site"), because the image's PYTHONPATH
names its folder. It costs a dictionary's look-up where nothing is expected. Otherwise the first
import of a framework asks the guard, and nothing before it does: a program that only converts data
needs no GPU. A fault of the guard never ends a program.
"""

# Paths are text here: pathlib costs 5 ms. A finder's arguments are given.
# ruff: noqa: PTH100, PTH120, ARG002
import os
import sys

_VARIABLE = "TRAINING_ACCELERATOR"
_FRAMEWORKS = frozenset({"tensorflow", "jax", "torch", "cupy", "onnxruntime"})
_USAGE = 2


class _Before:
    """A finder that finds nothing, and is asked before every other one."""

    asked = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name in _FRAMEWORKS and not self.asked:
            self.asked = True
            _ask()


def _ask() -> None:
    try:
        from training_image_guard import refusal  # type: ignore[import-not-found]

        cause = refusal(os.environ)
    except Exception:
        return
    if cause:
        sys.stdout.flush()
        sys.stderr.write(f"training-image-factory: {cause}\n")
        sys.stderr.flush()
        os._exit(_USAGE)


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
