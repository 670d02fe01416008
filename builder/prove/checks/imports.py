"""Can every module that the program imports be imported? For a program that is not our trainer."""

from __future__ import annotations

from builder import tensorflow
from builder.prove.bench import Bench
from builder.prove.suite import Answer, Check, probed

APP = "/app"
"""Where an image has its program."""


def run(bench: Bench) -> Answer:
    """Read the program inside the image and import what it names."""
    request = {"folder": APP, "proven_elsewhere": list(tensorflow.MODULES)}
    return probed(bench.probe("builder.prove.probes.imports", request))


CHECK = Check("imports", 1, run)
