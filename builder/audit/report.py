"""What an audit says: a table for people, data for programs, annotations for GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from builder.audit.audited import Audited
from builder.core import display
from builder.core.display import Annotation, masked
from builder.devicecode.verdict import LibraryVerdict, Support, Verdict, carries


def table(sources: Sequence[Audited]) -> tuple[str, ...]:
    """Return the lines of the table: a row for each library, a column for each GPU (for each
    target, if there are several), then the verdicts."""
    many = len(sources) > 1
    columns = [
        (_title(source, gpu.name, many), verdict)
        for source in sources
        for gpu, verdict in source.verdicts
    ]
    cells: dict[str, dict[int, str]] = {}
    for number, (_, verdict) in enumerate(columns):
        for finding in _with_code(verdict):
            # the same library of images with different Pythons is one row
            below = re.sub(r"^.*/(site|dist)-packages/", "", finding.library.path)
            cells.setdefault(below, {})[number] = _cell(finding)
    names = _short(cells)
    rows = [["", *(title for title, _ in columns)]] if cells else []
    rows += [
        [names[path], *(row.get(number, "-") for number in range(len(columns)))]
        for path, row in sorted(cells.items(), key=lambda item: names[item[0]])
    ]
    lines = display.columns(rows)
    for source in sources:
        if source.note:
            lines.append(f"{source.name}: {source.note}")
        lines += [f"{source.name}: {secret}" for secret in source.secrets]
        for (text, instead), gpus in _known_bad(source).items():
            lines += [f"{source.name}: {', '.join(gpus)}: {text}", f"    instead: {instead}"]
        for gpu, verdict in source.verdicts:
            before = f"{source.name}: " if many else ""
            lines.append(f"{before}{gpu.name} {verdict}{_driver(verdict)}")
            if verdict.instead:
                lines.append(f"    instead: {verdict.instead}")
            lines += [
                f"    {finding.library.name}: {finding}"
                for finding in verdict.findings
                if source.required and finding.status == Support.NOT_USED
            ]
    return tuple(lines)


def _known_bad(source: Audited) -> dict[tuple[str, str], list[str]]:
    """Return what is known to fail, and what to take instead, with the GPUs."""
    gpus: dict[tuple[str, str], list[str]] = {}
    for gpu, found in source.known_bad:
        gpus.setdefault((str(found), found.row.instead), []).append(gpu.name)
    return gpus


def as_dict(source: Audited) -> dict[str, object]:
    """Return an audit as JSON-ready data, with `accelerators` in the order of `verdicts`."""
    return {
        "source": source.name,
        "accelerators": [gpu.name for gpu in source.devices],
        "refused": [gpu.name for gpu, _ in source.refused],
        "secrets": list(source.secrets),
        "known_bad": [f"{gpu.name}: {found}" for gpu, found in source.known_bad],
        "libraries": [
            {
                "path": library.path,
                "package": library.package,
                "version": library.version,
                "bytes": library.size,
                "carries": carries(library),
                "broken": library.broken,
                "doubt": library.doubt,
            }
            for library in source.libraries.libraries
            if library.groups or library.broken or library.doubt
        ],
        "verdicts": [_verdict(verdict) for _, verdict in source.verdicts],
    }


def github_lines(sources: Sequence[Audited]) -> Iterator[str]:
    """Yield an audit as GitHub's annotations: an error for each library that a GPU cannot run, a
    warning for one that it has to compile first."""
    for source in sources:
        for _, verdict in source.verdicts:
            title = f"device code for {verdict.device}"
            level = "warning" if verdict.runs else "error"
            instead = f"; instead: {verdict.instead}" if verdict.instead else ""
            for finding in verdict.spoilers:
                text = f"{finding.library.name}: {finding}{instead}"
                yield annotation(level, text, file=finding.library.path, title=title)
            if not verdict.spoilers and not verdict.runs:
                yield annotation("error", "no library holds device code", title=title)
        for gpu, found in source.known_bad:
            level = "error" if found.row.fails else "warning"
            text = f"{found}; instead: {found.row.instead}"
            yield annotation(level, text, title=f"known to fail on {gpu.name}")
        for secret in source.secrets:
            yield annotation("error", secret, title="secret")


def annotation(level: str, text: str, **properties: str) -> Annotation:
    """Return the workflow command by which GitHub shows an annotation (docs.github.com, "Workflow
    commands"). level: error or warning. properties: file, title."""

    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    pairs = (
        f"{name}={escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    return Annotation(f"::{level} {','.join(pairs)}::{escaped(masked(text))}")


def _driver(verdict: Verdict) -> str:
    """Return which drivers run the libraries, where that is known."""
    if not verdict.runs or not verdict.driver:
        return ""
    why = f", which compiles PTX {verdict.ptx_version}" if verdict.ptx_version else ""
    return f"; driver {verdict.driver.driver} or newer{why}"


def _title(source: Audited, gpu: str, many: bool) -> str:
    if not many:
        return gpu
    return f"{source.name}:{gpu}" if len(source.devices) > 1 else source.name


def _with_code(verdict: Verdict) -> Iterator[LibraryVerdict]:
    return (finding for finding in verdict.findings if finding.status != Support.NO_DEVICE_CODE)


def _cell(finding: LibraryVerdict) -> str:
    if finding.status != Support.PTX:
        return str(finding.status)
    size, seconds = finding.containers.ptx_bytes / 1e6, finding.containers.ptx_seconds
    return f"{finding.status} ({size:.0f} MB, about {seconds:.0f} s)"


def _short(paths: Iterable[str]) -> dict[str, str]:
    """Return the file name of each path, or the whole path where two have the same file name."""
    names = {path: PurePosixPath(path).name for path in paths}
    every = list(names.values())
    return {path: name if every.count(name) == 1 else path for path, name in names.items()}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "compute_capability": str(verdict.device),
        "status": str(verdict.status),
        "runs": verdict.runs,
        "spoiler": verdict.spoiler.library.path if verdict.spoiler else None,
        "instead": verdict.instead,
        "driver": verdict.driver and verdict.driver.driver,
        "ptx_isa": verdict.ptx_version or None,
        "ptx_seconds": round(verdict.ptx_seconds, 1),
        "findings": [
            {
                "library": finding.library.path,
                "status": str(finding.status),
                "says": str(finding),
                "containers": {
                    "native": finding.containers.native,
                    "older minor": finding.containers.older,
                    "PTX": finding.containers.ptx,
                    "nothing": finding.containers.nothing,
                },
                "ptx_bytes": finding.containers.ptx_bytes,
                "ptx_seconds": round(finding.containers.ptx_seconds, 1),
            }
            for finding in _with_code(verdict)
        ],
    }
