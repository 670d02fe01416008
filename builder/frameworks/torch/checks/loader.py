"""Does PyTorch find the libraries that it was locked with, and no others?"""

from __future__ import annotations

from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed


def run(session: Session) -> Answer:
    """Ask inside the image, with what it was made from to compare with."""
    stack = session.subject.stack
    request = {
        "release": stack.release,
        "cuda": stack.cuda,
        "cudnn": stack.cudnn,
        "capability": stack.compute_capability,
        "locked": dict(session.subject.packages),
    }
    return probed(session.probe("builder.frameworks.torch.probes.loader", request))


CHECK = Check("loader", 1, run)
