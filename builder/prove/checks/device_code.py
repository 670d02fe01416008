"""Does every library have code for the image's GPU? Read from the layers, without a GPU."""

from __future__ import annotations

from dataclasses import asdict

from builder.config.stack import Stack
from builder.devicecode.verdict import Audit, Support
from builder.prove.audit import instead, passes
from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check


def run(session: Session) -> Answer:
    """Read the image's libraries and judge them for its GPU."""
    libraries = Audit(session.content.libraries)
    return judge(libraries, session.subject.stack, session.subject.target)


def judge(libraries: Audit, stack: Stack, target: str) -> Answer:
    """Return each library's support for the target's GPU, and the library that spoils the image."""
    verdict = libraries.verdict(stack.compute_capability or "")
    defects = []
    if not passes(verdict, stack.spec.allow_ptx):
        slow = f" (about {verdict.ptx_seconds:.0f} s to compile at the first start)"
        name = stack.accelerator.name
        defects.append(
            Defect(
                message=f"on {name} ({verdict}{slow if verdict.status == Support.PTX else ''})",
                fix=instead(verdict, target),
            )
        )
    with_code = [
        finding for finding in verdict.findings if finding.status != Support.NO_DEVICE_CODE
    ]
    seen = {
        "compute_capability": str(verdict.device),
        "status": str(verdict.status),
        "driver": asdict(verdict.driver) if verdict.driver else None,
        "ptx_seconds": round(verdict.ptx_seconds, 1),
        "libraries": {finding.library.path: str(finding.status) for finding in with_code},
        "without_device_code": len(verdict.findings) - len(with_code),
        "bytes": sum(library.size for library in libraries.libraries if library.groups),
    }
    return defects, seen


CHECK = Check("device-code", 2, run, kinds=frozenset({"gpu"}))
