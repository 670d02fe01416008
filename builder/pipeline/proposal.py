"""Newer locks, said for a pull request: versions, layers, bytes, advisories, device code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from builder.lock import pins
from builder.lock.model import Lock
from builder.render.basechanges import LayerChange
from builder.render.changes import InstructionChange
from builder.trust import sbom
from builder.trust.advisories import Judged

_OWN_BASE: Final = "FROM ${REPOSITORY}:base-"


@dataclass(frozen=True)
class TargetChange:
    """What a proposal changes in a target. device_code: what its new wheels say against it, None
    where no device code is judged."""

    target: str
    before: Lock
    after: Lock
    layers: tuple[LayerChange, ...]
    instructions: tuple[InstructionChange, ...]
    known: Judged
    known_after: Judged
    device_code: tuple[str, ...] | None

    @property
    def differs(self) -> bool:
        """Whether the target's image would be another one."""
        return bool(moved(self.before, self.after) or self.layers or self.instructions)


def title(changes: Sequence[TargetChange]) -> str:
    """The first line of the pull request, and of its commit."""
    return f"Newer versions of what {', '.join(one.target for one in changes)} lock"


def text(changes: Sequence[TargetChange], commit: str) -> str:
    """The text of the pull request, in Markdown."""
    sections = {
        "Versions": _versions(changes),
        "Layers": _layers(changes),
        "Known against them": _known(changes),
        "Device code": _device_code(changes),
    }
    parts = [f"# {title(changes)}", f"From commit {commit[:12]}."]
    for name, lines in sections.items():
        parts.append(f"## {name}\n\n" + "\n".join(lines).rstrip())
    return "\n\n".join(parts) + "\n"


def moved(before: Lock, after: Lock) -> dict[str, tuple[str, str]]:
    """Package -> its version before and after, where they differ; "" for none."""
    return pins.moved(_of(before), _of(after))


def _of(lock: Lock) -> dict[str, str]:
    debian = {f"{deb.name} (Debian)": deb.version for _, deb in sbom.debian_packages(lock)}
    return {pin.name: pin.version for pin in lock.packages.values()} | debian


def _bytes(lock: Lock) -> int:
    """What is downloaded for a lock, as far as it is known."""
    wheels = sum(pin.bytes or 0 for pin in lock.packages.values())
    return wheels + sum(deb.bytes for _, deb in sbom.debian_packages(lock))


def _versions(changes: Sequence[TargetChange]) -> Iterator[str]:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for one in changes:
        for name, (old, new) in moved(one.before, one.after).items():
            rows.setdefault((name, old or "(new)", new or "(gone)"), []).append(one.target)
    if not rows:
        yield "No version differs."
        return
    yield from ("| package | before | after | in |", "|---|---|---|---|")
    for (name, old, new), targets in sorted(rows.items()):
        everywhere = len(targets) == len(changes)
        yield f"| {name} | {old} | {new} | {'all' if everywhere else ', '.join(targets)} |"


def _layers(changes: Sequence[TargetChange]) -> Iterator[str]:
    """Targets whose bases change alike are told together; each names its new base by itself."""
    groups: dict[tuple[object, ...], list[TargetChange]] = {}
    for one in changes:
        key = (one.layers, _bytes(one.before), _bytes(one.after))
        groups.setdefault(key, []).append(one)
    for alike in groups.values():
        one = alike[0]
        anew = [layer.download or 0 for layer in one.layers if layer.change != "removed"]
        names = ", ".join(each.target for each in alike)
        yield f"**{names}**: layers made anew: {len(anew)}, of {_mb(sum(anew))} of packages."
        yield f"All packages: {_mb(_bytes(one.before))} -> {_mb(_bytes(one.after))}."
        yield ""
        for layer in one.layers:
            size = f", {_mb(layer.download)}" if layer.download else ""
            yield f"- {layer.name}: {layer.change}{size}"
        for told in (told for each in alike for told in each.instructions):
            if not told.instruction.startswith(_OWN_BASE):
                yield f"- {told.file}:{told.line}: {told.change}: `{told.instruction}`"
        yield ""


def _known(changes: Sequence[TargetChange]) -> Iterator[str]:
    before = _against({one.target: one.known for one in changes})
    after = _against({one.target: one.known_after for one in changes})
    for what, found in (
        ("mended", before.keys() - after.keys()),
        ("new", after.keys() - before.keys()),
        ("left", after.keys() & before.keys()),
    ):
        yield f"{what}: {len(found)}"
        yield ""
        for name in sorted(found):
            package, id_ = name
            yield f"- {id_} of {package}; in {', '.join((before | after)[name])}"
        yield ""


def _against(judged: Mapping[str, Judged]) -> dict[tuple[str, str], list[str]]:
    """(package, id) of what nobody accepts -> the targets."""
    found: dict[tuple[str, str], list[str]] = {}
    for target, one in judged.items():
        for known in one.open:
            for id_ in known.ids:
                found.setdefault((known.package.name, id_), []).append(target)
    return found


def _device_code(changes: Sequence[TargetChange]) -> Iterator[str]:
    judged = [one for one in changes if one.device_code is not None]
    if not judged:
        yield "No target has device code to judge."
    for one in judged:
        yield f"- {one.target}: " + ("; ".join(one.device_code or ()) or "runs on its GPU, as the"
                                     " tables say; the wheels were read")  # fmt: skip


def _mb(size: int | None) -> str:
    return f"{(size or 0) / 1e6:,.1f} MB"
