"""Can every module that the program imports be imported? For a program that is not our trainer."""

from __future__ import annotations

from collections.abc import Sequence

from builder.image.plan import APP
from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed


def check(proven_elsewhere: Sequence[str]) -> Check:
    """Return the check. proven_elsewhere: modules that another check loads; these are only found,
    because they load slowly."""

    def run(session: Session) -> Answer:
        """Read the program inside the image and import what it names."""
        request = {"folder": APP, "proven_elsewhere": list(proven_elsewhere)}
        return probed(session.probe("builder.prove.probes.imports", request))

    return Check("imports", 1, run)
