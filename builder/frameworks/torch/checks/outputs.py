"""Can somebody use what the training run wrote?"""

from __future__ import annotations

from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed


def run(session: Session) -> Answer | None:
    """Ask inside the image. Without a training run that ended well there is nothing to look at."""
    if session.finished_job is None:
        return None
    gpus = session.gpus.ids
    request = {"job": session.finished_job, "gpu": bool(gpus)}
    return probed(session.probe("builder.frameworks.torch.probes.outputs", request, gpus=gpus))


CHECK = Check("outputs", 1, run)
