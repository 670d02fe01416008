"""Does every library have code for the image's GPU? Read from the layers, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from builder.audit.audited import instead, passes
from builder.devicecode.verdict import Audit, Support, Verdict, holding
from builder.prove import wheels
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check


def run(image: Image) -> Answer:
    if image.gpu is None:
        raise NotThereError("no GPU is named (--gpu)")
    libraries = Audit(image.content.libraries)
    verdict = libraries.verdict(image.gpu.capability)
    driver = f"; driver {verdict.driver.driver} or newer" if verdict.driver else ""
    slow = verdict.status == Support.PTX
    compiles = f", about {verdict.ptx_seconds:.0f} s to compile at the first start" if slow else ""
    note = f"{image.gpu.name} {verdict}{compiles}"
    defects = []
    refused = not passes(verdict, image.subject.spec.allow_ptx if image.subject else True)
    if refused:
        target = image.subject.target if image.subject else ""
        defects.append(Defect(note, instead(verdict, target)))
    defects += [
        Finding(
            f"{each.library.path} may not be whole: {each.library.doubt}; {each.reason}",
            "install it again, or take it out",
        )
        for each in verdict.findings
        if each.library.doubt and each.status == Support.NOT_USED
    ]
    defects += [] if refused else _gone(verdict)
    with_code = [
        finding for finding in verdict.findings if finding.status != Support.NO_DEVICE_CODE
    ]
    return defects, {
        "note": "" if refused else f"{note}{driver}",
        "compute_capability": str(verdict.device),
        "status": str(verdict.status),
        "driver": asdict(verdict.driver) if verdict.driver else None,
        "ptx_seconds": round(verdict.ptx_seconds, 1),
        "libraries": {finding.library.path: str(finding.status) for finding in with_code},
        "without_device_code": len(verdict.findings) - len(with_code),
        "bytes": sum(library.size for library in libraries.libraries if library.groups),
    }


def _gone(verdict: Verdict) -> Iterator[Defect]:
    """Yield the libraries with less code for the GPU than the wheel that they come from: somebody
    pruned them for another one, and wrote their records anew."""
    for each in verdict.findings:
        library, known = each.library, wheels.known(each.library)
        if not known or each.status in (Support.NOT_USED, Support.NOT_KNOWN, Support.BROKEN):
            continue
        there, all_ = holding(library, verdict.device), holding(known, verdict.device)
        if there < all_:
            yield Defect(
                f"{library.path}: {there:,} of {all_:,} containers for {verdict.device} are there; "
                f"{library.origin} has them all",
                "install it again, or let the factory prune it for this GPU",
            )


CHECK = Check.of("device-code", 3, run, frozenset({"gpu"}))
