"""What a check saw in an image, as a sentence for a person.

A receipt keeps what was seen as data, and may come from another factory or from a stranger. What
does not fit the sentence leaves the check's own note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from builder.core.display import size
from builder.prove.receipts import CheckResult

Seen = Mapping[str, Any]


def sentence(check: CheckResult) -> str:
    """Return what a check saw, or why it refused the image or saw nothing."""
    if check.problems:
        more = len(check.problems) - 1
        return ended(check.problems[0].message + (f" (and {more} more)" if more else ""))
    if check.not_there:
        return ended(check.not_there)
    try:
        said = _SAID[check.name](check.seen)
    except (KeyError, TypeError, ValueError, AttributeError):
        said = check.note
    unseen = f"Not followed: {check.not_followed}" if check.not_followed else ""
    return " ".join(map(ended, filter(None, (said, unseen)))) or "Nothing is wrong."


def ended(text: str) -> str:
    """Return a text as a sentence: with a capital, and a full stop."""
    return text[:1].upper() + text[1:].removesuffix(".") + "."


def _size(seen: Seen) -> str:
    budget = seen["budget_bytes"]
    allowed = f"image.yaml allows {size(budget)}" if budget else "image.yaml sets no bound"
    return f"a pull transfers {size(seen['compressed_bytes'])}; {allowed}"


_RUNS: Final = {
    "native": "runs all of them natively",
    "older minor": "runs them by code of an older minor",
    "PTX": "runs them once PTX is compiled",
}


def _device_code(seen: Seen) -> str:
    driver = seen["driver"]
    needs = f", with driver {driver['driver']} or newer" if driver else ""
    seconds = seen["ptx_seconds"]
    compiles = f"; PTX takes about {seconds:.0f} s to compile" if seconds else ""
    runs = f"a GPU of {seen['compute_capability']} {_RUNS[seen['status']]}"
    return f"{len(seen['libraries']):,} libraries hold kernels, and {runs}{needs}{compiles}"


def _combinations(seen: Seen) -> str:
    told = f"; worth knowing: {seen['told'][0]}" if seen["told"] else ""
    return f"its versions are none of {seen['note']} that fail{told}"


def _permissions(seen: Seen) -> str:
    count = len(seen["set_id"])
    rights = "no program gives" if count == 0 else f"{count} programs give"
    return f"it runs as {seen['note'].replace('USER', 'user')}, and {rights} it another's rights"


def _loader(seen: Seen) -> str:
    if "note" in seen:
        return f"{seen['note']}"
    count = len(seen.get("libraries") or ())
    found = f", and finds {count:,} libraries of CUDA's where it looks" if count else ""
    return f"the framework is imported in the locked version{found}"


def _contents(seen: Seen) -> str:
    return (
        f"{len(seen['packages']):,} packages are those of the locks; {seen['files']:,} files take "
        f"{size(seen['bytes'])} unpacked, and no layer holds a secret"
    )


def _training(seen: Seen) -> str:
    first, second, loss = seen["first"], seen["second"], seen["loss"]
    right = f"; {seen['accuracy']:.0%} of held-out digits were right" if seen["accuracy"] else ""
    return (
        f"it trained, was killed at step {first['last_step']:,}, went on at "
        f"{second['resumed_at']:,} and reached {second['last_step']:,}: the loss fell from "
        f"{loss['first']:.2g} to {loss['last']:.2g}{right}"
    )


def _starts(seen: Seen) -> str:
    took, answered = f"{seen['seconds']:.0f} s", seen["answered"]
    if ended := seen.get("ended"):
        return f"it started, then {ended}"
    if answered == "started":
        return f"it started, and ran for {took}"
    return f"with {answered} it ended well after {took}"


_SAID: Final[Mapping[str, Callable[[Seen], str]]] = {
    "size": _size,
    "device-code": _device_code,
    "combinations": _combinations,
    "environment": lambda seen: f"none of {seen['note']} hides the GPU or harms a run",
    "machine": lambda seen: f"a machine can start it, and stops it by {seen['stop_signal']}",
    "driver": lambda _: "it holds no library of the driver: the machine's own is loaded",
    "permissions": _permissions,
    "shadows": lambda seen: (
        f"nothing in {seen['note'].partition(': ')[2] or 'it'} hides a module of Python"
    ),
    "loader": _loader,
    "compiler": lambda seen: f"a kernel compiles for the GPU: {seen['note']}",
    "contents": _contents,
    "installed": lambda seen: f"{seen['note']} are whole and fit each other",
    "certificates": lambda seen: f"programs find certificates: {seen['note']}",
    "entry-point": lambda seen: f"it starts `{seen['note']}`, which is there",
    "secrets": lambda seen: f"none of {seen['note']} holds a secret",
    "pth": lambda seen: (
        seen["note"] if seen["note"][0] == "n" else f"{seen['note']} run when Python starts"
    ),
    "start": lambda seen: f"it was started: {seen['note']}",
    "training": _training,
    "outputs": lambda seen: f"what it wrote can be read: {', '.join(sorted(seen))}",
    "stopping": lambda seen: (
        f"stopped by SIGTERM it saved step {seen['last_checkpoint']:,}, and ended with "
        f"{seen['exit_code']} after {seen['seconds']:.0f} s"
    ),
    "imports": lambda seen: (
        f"the {len(seen['modules']):,} modules that the program imports are there"
        + (f"; {seen['note']}" if seen.get("note") else "")
    ),
    "starts": _starts,
    "compile": lambda seen: f"its step {seen['note']}",
    "gpu": lambda seen: f"it ran on a GPU: {seen['note']}",
}
