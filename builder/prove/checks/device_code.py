"""Does every library have code for the image's GPU? Read from the libraries, without a GPU."""

from __future__ import annotations

from builder.devicecode.verdict import Audit, Support
from builder.prove.audit import instead, of_image, passes
from builder.prove.bench import Bench
from builder.prove.receipts import Defect
from builder.prove.suite import Answer, Check
from builder.spec.stack import Stack


def run(bench: Bench) -> Answer:
    """Read the image's libraries and judge them for its GPU."""
    found = of_image(bench.client, str(bench.image.id))
    return judge(found, bench.subject.stack, bench.subject.target)


def judge(found: Audit, stack: Stack, target: str) -> Answer:
    """Each library's support for the target's GPU, and the library that spoils the image."""
    verdict = found.verdict(stack.compute_capability or "")
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
    seen = {
        "compute_capability": str(verdict.device),
        "status": str(verdict.status),
        "ptx_seconds": round(verdict.ptx_seconds, 1),
        "libraries": {
            one.library.path: str(one.status)
            for one in verdict.findings
            if one.status != Support.NO_DEVICE_CODE
        },
        "without_device_code": sum(
            one.status == Support.NO_DEVICE_CODE for one in verdict.findings
        ),
        "bytes": sum(library.size for library in found.libraries if library.groups),
    }
    return defects, seen


CHECK = Check("device-code", 2, run, kinds=frozenset({"gpu"}))
