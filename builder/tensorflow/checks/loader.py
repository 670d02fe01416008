"""Does TensorFlow find every library that it opens by name? (builder/tensorflow/probes/loader)"""

from __future__ import annotations

from builder.prove.bench import Bench
from builder.prove.suite import Answer, Check, probed


def run(bench: Bench) -> Answer:
    """Ask inside the image, with what it was made from to compare with."""
    spec, stack = bench.subject.spec, bench.subject.stack
    request = {
        "accelerator": stack.accelerator.kind,
        "cuda": stack.cuda,
        "cudnn": stack.cudnn,
        "locked": dict(bench.subject.packages),
        "strict": spec.has_own_base,
    }
    return probed(bench.probe("builder.tensorflow.probes.loader", request))


CHECK = Check("loader", 1, run)
