"""Can somebody use what the training run wrote? (builder/tensorflow/probes/outputs.py)"""

from __future__ import annotations

from builder.prove.bench import RECORDS, Bench
from builder.prove.suite import Answer, Check, probed


def run(bench: Bench) -> Answer | None:
    """Ask inside the image. Without a training run that ended well there is nothing to look at."""
    if bench.finished_job is None:
        return None
    gpus = bench.gpus.ids
    request = {"records": RECORDS, "job": bench.finished_job, "gpu": bool(gpus)}
    return probed(bench.probe("builder.tensorflow.probes.outputs", request, gpus=gpus))


CHECK = Check("outputs", 1, run)
