"""What changed between two images: packages, device code, bytes, checks.

Both are judged alike: by their receipts where these are of one suite, else by the checks of
anybody's image, asked now.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from builder.core.confidential import secret_in
from builder.core.display import size
from builder.pipeline.page import Bar, Page, Rows, Section
from builder.pipeline.report import ImageReport, layer_bar
from builder.prove import spread, suites, told
from builder.prove.checks import compile as compiling
from builder.prove.fleet import NO_CODE
from builder.prove.receipts import CheckResult

T = TypeVar("T")
Changes = Mapping[str, tuple[T | None, T | None]]
"""What is not the same in both, by name; None where one has it not."""

FOLDED: Final = 30
"""A table with more rows is folded."""


@dataclass(frozen=True)
class Difference:
    """What changed from one image to another. Sizes in bytes."""

    old: ImageReport
    new: ImageReport
    checks: Changes[CheckResult]
    packages: Changes[str]
    debian: Changes[str]
    """Nothing where a lock names them for one of both alone."""
    kernels: Changes[int]
    """Device code by what it was compiled for."""
    gpus: Changes[str]
    """What each GPU finds."""
    libraries: Changes[int]
    """By path."""
    layers: Changes[int]
    """By what made it, and the start of its diff id."""
    settings: Changes[str]

    @property
    def same(self) -> bool:
        """Whether they are the same image, as far as a container could tell."""
        return not self.layers and not self.settings


def of(old: ImageReport, new: ImageReport) -> Difference:
    before, now = ({check.name: check for check in each} for each in _checks(old, new))
    known = old.debian is not None and new.debian is not None
    return Difference(
        old,
        new,
        checks={
            name: pair
            for name, pair in changes(before, now).items()
            if _answer(pair[0]) != _answer(pair[1])
        },
        packages=changes(old.packages, new.packages),
        debian=changes(old.debian or {}, new.debian or {}) if known else {},
        kernels=changes(*map(_kernels, (old, new))),
        gpus=changes(
            *(
                {**dict.fromkeys((*old.gpus, *new.gpus), NO_CODE), **each.gpus}
                for each in (old, new)
            )
        ),
        libraries=changes(
            *({lib.path: lib.size for lib in each.image.content.libraries} for each in (old, new))
        ),
        layers=changes(*map(_layers, (old, new))),
        settings=changes(_settings(old), _settings(new)),
    )


def changes(old: Mapping[str, T], new: Mapping[str, T]) -> Changes[T]:
    """Return what is not the same in both, in the order of the new one."""
    pairs = {name: (old.get(name), new.get(name)) for name in (*new, *old)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _checks(*reports: ImageReport) -> Iterator[tuple[CheckResult, ...]]:
    """Yield the checks of both, of one suite."""
    alike = len({report.suite for report in reports}) == 1 and all(r.checks for r in reports)
    for report in reports:
        asked = alike or report.suite == suites.IMAGE.name
        yield report.checks if asked else suites.IMAGE.judge(report.image)


def _answer(check: CheckResult | None) -> tuple[object, ...]:
    """Return what a check says of an image, with what its step needs on its accelerator, and
    without what was counted."""
    if check is None:
        return ()
    needs = check.note if check.name == compiling.NAME else ""
    return check.status, check.problems, check.findings, needs


def _layers(report: ImageReport) -> dict[str, int]:
    bars = ((diff_id[7:19], layer_bar(report, diff_id)) for diff_id in report.layers)
    return {f"{bar.name} ({short})": bar.bytes for short, bar in bars}


def _kernels(report: ImageReport) -> dict[str, int]:
    code = spread.by_gpu(report.image.content.libraries)
    return {gpu: sum(sizes.values()) for gpu, sizes in code.items()}


def _settings(report: ImageReport) -> dict[str, str]:
    """Return what the configuration says, by name, $NAME for a variable; a secret is not told."""
    config = report.image.config
    named = {name: config.get(name) for name in ("User", "Entrypoint", "Cmd", "WorkingDir")}
    said = {
        name: shlex.join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in named.items()
        if value
    }
    for name, text in report.image.environment.items():
        kind = secret_in(f"{name}={text}".encode(), True, variables=True)
        said[f"${name}"] = f"*** ({kind})" if kind else text
    return said


# --- the page -------------------------------------------------------------------------------------


def page(difference: Difference) -> Page:
    old, new = difference.old, difference.new
    before, now = (sum(each.sizes.values()) for each in (old, new))
    shared = len(old.layers.keys() & new.layers.keys())
    return Page(
        f"{old.name} → {new.name}",
        "same" if difference.same else "changed",
        {
            "old": " ".join(filter(None, (old.facts.get("digest"), old.state))),
            "new": " ".join(filter(None, (new.facts.get("digest"), new.state))),
            "pull": _step(old.facts.get("pull", ""), new.facts.get("pull", "")),
            "unpacked": f"{_step(size(before), size(now))} ({_signed(now - before)})",
            "layers": f"{shared} of {len(new.layers)} are the same",
        },
        sections=() if difference.same else tuple(_sections(difference)),
    )


def _sections(difference: Difference) -> Iterator[Section]:
    rows = [
        (name, now.status if now else "not asked", _said(before), _said(now))
        for name, (before, now) in difference.checks.items()
    ]
    same = "" if rows else "Every check says the same."
    yield Section("Checks", same, ("check", "state", "before", "now"), rows)
    yield _texts("Python packages", difference.packages)
    yield _texts("Debian packages", difference.debian)
    yield _texts("GPUs", difference.gpus)
    yield _texts("Settings", difference.settings)
    sides = (difference.old, "before"), (difference.new, "now")
    yield Section(
        "Bytes", "Unpacked.", bars=[Bar(side, each.sizes) for each, side in sides], summed=False
    )
    yield _sizes("Device code", difference.kernels)
    yield _sizes("Layers", difference.layers)
    yield _sizes("Libraries", difference.libraries, folded=True)


def _said(check: CheckResult | None) -> str:
    """Return what a check saw, and what is worth a change."""
    if check is None:
        return ""
    return " ".join([told.sentence(check), *(told.ended(each.message) for each in check.findings)])


def _texts(title: str, changed: Changes[str]) -> Section:
    rows = [(name, before or "-", now or "-") for name, (before, now) in changed.items()]
    return _listed(title, ("name", "before", "now"), rows, len(rows) > FOLDED)


def _sizes(title: str, changed: Changes[int], folded: bool = False) -> Section:
    """Return a row for each size that changed, the largest change first."""
    by = {name: (now or 0) - (before or 0) for name, (before, now) in changed.items()}
    rows = [
        (name, *("-" if each is None else size(each) for each in changed[name]), _signed(by[name]))
        for name in sorted(by, key=lambda name: (-abs(by[name]), name))
    ]
    return _listed(title, ("name", "before", "now", "change"), rows, folded or len(rows) > FOLDED)


def _listed(title: str, head: Sequence[str], rows: Rows, folded: bool) -> Section:
    return Section(f"{title} ({len(rows)})" if folded else title, "", head, rows, folded=folded)


def _step(before: str, now: str) -> str:
    return now if before == now else f"{before or '?'} → {now or '?'}"


def _signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"


def as_dict(difference: Difference) -> dict[str, Any]:
    """Return the difference as JSON-ready data: before and now by name. Sizes in bytes."""
    old, new = difference.old, difference.new
    return {
        "old": old.name,
        "new": new.name,
        "same": difference.same,
        "checks": {
            name: [each and {"status": each.status, "said": _said(each)} for each in pair]
            for name, pair in difference.checks.items()
        },
        "packages": difference.packages,
        "debian_packages": difference.debian,
        "device_code": difference.kernels,
        "gpus": difference.gpus,
        "bytes": changes(old.sizes, new.sizes),
        "layers": difference.layers,
        "libraries": difference.libraries,
        "settings": difference.settings,
    }
