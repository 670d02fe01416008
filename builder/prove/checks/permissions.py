"""Who may become root in the image, and who may change what it runs?

The files are read inside the image (builder/prove/probes/permissions.py).
"""

from __future__ import annotations

from builder.prove.bench import PLACE, Bench
from builder.prove.suite import Answer, Check, probed

APP = "/app"
"""Where an image has its program."""


def run(bench: Bench) -> Answer:
    """Look at the rights of every file, as root."""
    request = {
        "user": bench.config.get("User") or "",
        "program": APP,
        "strict": bench.subject.spec.has_own_base,
        "skip": [PLACE],
    }
    return probed(bench.probe("builder.prove.probes.permissions", request, as_root=True))


CHECK = Check("permissions", 1, run)
