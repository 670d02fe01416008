"""Does TensorFlow find every library that it opens by name?"""

from __future__ import annotations

from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed


def run(session: Session) -> Answer:
    """Ask inside the image, with what it was made from to compare with."""
    spec, stack = session.subject.spec, session.subject.stack
    request = {
        "accelerator": stack.accelerator.kind,
        "cuda": stack.cuda,
        "cudnn": stack.cudnn,
        "capability": stack.compute_capability,
        "locked": dict(session.subject.packages),
        "strict": spec.has_own_base,
    }
    return probed(session.probe("builder.frameworks.tensorflow.probes.loader", request))


CHECK = Check("loader", 2, run)
