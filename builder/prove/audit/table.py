"""An audit for people: the table of libraries and GPUs, and what an image holds by package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from builder.devicecode.inventory import Library
from builder.devicecode.verdict import Audit, Support
from builder.prove.audit.judged import Audited


def table(found: Sequence[Audited]) -> tuple[str, ...]:
    """The lines of the table: a row for each library, a column for each GPU (for each target, if
    there are several), then the verdicts."""
    many = len(found) > 1
    columns = [
        (f"{one.name}:{device.name}" if many and len(one.devices) > 1 else
         one.name if many else device.name, verdict)
        for one in found
        for device, verdict in one.verdicts
    ]  # fmt: skip
    cells: dict[str, dict[int, str]] = {}
    for number, (_, verdict) in enumerate(columns):
        for finding in verdict.findings:
            if finding.status != Support.NO_DEVICE_CODE:
                text = str(finding.status)
                if finding.status == Support.PTX:
                    size, seconds = finding.ptx_bytes / 1e6, finding.ptx_seconds
                    text += f" ({size:.0f} MB, about {seconds:.0f} s)"
                # the same library of images with different Pythons is one row
                below = re.sub(r"^.*/(site|dist)-packages/", "", finding.library.path)
                cells.setdefault(below, {})[number] = text
    names = _short(cells)
    lines = [["", *(title for title, _ in columns)]] if cells else []
    lines += [
        [names[path], *(row.get(number, "-") for number in range(len(columns)))]
        for path, row in sorted(cells.items(), key=lambda item: names[item[0]])
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for one in found:
        if one.note:
            shown.append(f"{one.name}: {one.note}")
        shown += [f"{one.name}: {secret}" for secret in one.secrets]
        for device, verdict in one.verdicts:
            before = f"{one.name}: " if many else ""
            shown.append(f"{before}{device.name} {verdict}")
            if verdict.instead:
                shown.append(f"    instead: {verdict.instead}")
    return tuple(shown)


def _short(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its file name, or the whole path where two have the same file name."""
    every = [(path, PurePosixPath(path).name) for path in paths]
    names = [name for _, name in every]
    return {path: name if names.count(name) == 1 else path for path, name in every}


@dataclass(frozen=True)
class PackageSize:
    """The libraries of one distribution, largest first; name is "" for those of none.

    size and device_code in bytes; device_code is the kernels' share of size, as they are stored.
    """

    name: str
    libraries: tuple[Library, ...]

    @property
    def size(self) -> int:
        return sum(library.size for library in self.libraries)

    @property
    def device_code(self) -> int:
        return sum(map(device_code, self.libraries))


def device_code(library: Library) -> int:
    """Bytes of kernels in a library, as they are stored."""
    return sum(sum(group.stored) for group in library.groups)


def left(found: Audit) -> tuple[PackageSize, ...]:
    """The libraries of an image by package, largest first."""
    packages: dict[str, list[Library]] = {}
    for library in found.libraries:
        owner = f"{library.package} {library.version}" if library.package else ""
        packages.setdefault(owner, []).append(library)
    made = [
        PackageSize(name, tuple(sorted(libraries, key=lambda library: -library.size)))
        for name, libraries in packages.items()
    ]
    return tuple(sorted(made, key=lambda package: -package.size))
