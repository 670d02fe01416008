"""Who may become root in the image, and who may change what it runs?

The files are read inside the image (builder/prove/probes/permissions.py).
"""

from __future__ import annotations

from builder.prove.session import APP, FOLDER, Session
from builder.prove.suite import Answer, Check, probed


def run(session: Session) -> Answer:
    """Look at the rights of every file, as root."""
    request = {
        "user": session.config.get("User") or "",
        "program": APP,
        "strict": session.subject.spec.has_own_base,
        "skip": [FOLDER],
    }
    return probed(session.probe("builder.prove.probes.permissions", request, as_root=True))


CHECK = Check("permissions", 2, run)
