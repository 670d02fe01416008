"""The three ways in: the probe, and the children that it starts."""

# Paths are text here, as in the other probes
# ruff: noqa: PTH100, PTH119, PTH120
from __future__ import annotations

import json
import os
import runpy
import sys

if not __package__:  # run as a folder: run it again as a package, so that relative imports work
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:1] = [os.path.dirname(here)]
    runpy.run_module(os.path.basename(here), run_name="__main__", alter_sys=True)
    sys.exit()

from .opening import ask_tensorflow, compile_kernel, open_all
from .probe import probe


def main(arguments: list[str]) -> None:
    """Do what the first argument asks for."""
    if arguments[0] == "--open":
        open_all(json.loads(arguments[1]))
    elif arguments[0] == "--ask-tensorflow":
        ask_tensorflow(arguments[1], json.loads(arguments[2]))
    elif arguments[0] == "--compile":
        compile_kernel(arguments[1], arguments[2])
    else:
        print(json.dumps(probe(json.loads(arguments[0]), dict(os.environ))))


if __name__ == "__main__":
    main(sys.argv[1:])
