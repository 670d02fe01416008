"""Conda's packages, in a command, a list or a file of an environment: which one is PyPI's, too.

A package is asked of PyPI where the table says that PyPI's is the same, and where each channel that
it may come from is public. A framework counts by its name in conda; each other package is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from builder.facts import frameworks, read_table
from builder.init import installers
from builder.init.statements import SourceStatement, package_of

_TABLE: Final = read_table(Path(__file__).with_suffix(".yaml"))
_SAME: Final[dict[str, str]] = {name: name for name in _TABLE["same"].split()} | _TABLE["called"]
_CHANNELS: Final = frozenset(_TABLE["channels"].split())
_OPTIONS: Final = (frozenset(_TABLE["valued"].split()), frozenset(_TABLE["flags"].split()))
_CHANNEL: Final = frozenset(("-c", "--channel"))
_PROGRAM: Final = re.compile(r"(?:.*/)?(?:conda|(?:micro)?mamba)")
_OTHER: Final = "a conda package: name it as a Python or Debian one"
_CUDA: Final = "an image has CUDA from locked wheels"
_FRAMEWORK: Final = "an image has the framework from PyPI"
_OF_CUDA: Final = re.compile(_TABLE["cuda"])
CONFIGURES: Final = (
    r"\b(?:mamba|conda)rc\b|\b(?:conda|(?:micro)?mamba) config (?!(?:--(?:env|system) )?(?:"
    rf"(?:--)?(?:add|append|prepend) channels (?:{'|'.join(sorted(_CHANNELS))})|"
    r"(?:--)?set (?:channel_priority|always_yes|auto_\w+|show_channel_urls|solver) \w+)"
    r"[ \t]*(?:\\\n[ \t]*)*(?:[;&|\n]|$))"
)
"""A pattern of what may name another channel."""
VARIABLE: Final = re.compile(r"(?:CONDA|MAMBA)_\w*CHANNEL.*|(?:CONDA|MAMBA)RC")


def elsewhere(channels: object) -> str:
    """Return why the packages of these channels may not be what their names say; "" where they
    are."""
    listed = channels if isinstance(channels, list) else [channels] if channels else []
    names = [each.get("channel") if isinstance(each, dict) else each for each in listed]
    for name in names:
        if str(name).partition("/label/")[0] not in _CHANNELS:
            return (
                f"it may come from the channel {name}: PyPI may have another package of this name"
            )
    return ""


def statements(
    words: Sequence[str], where: str, other: str = ""
) -> Iterator[SourceStatement] | None:
    """Yield what a command of conda or mamba installs; None for another command. other: why each
    package may come from another channel, "" where it does not."""
    if not words or not _PROGRAM.fullmatch(words[0]):
        return None
    install = installers.read_options(words[1:], _OPTIONS)
    steps = 1 + (install.packages[:1] == ("env",))
    if install.packages[steps - 1 : steps] not in {("install",), ("create",), ("update",)}:
        return None
    return _statements(install, install.packages[steps:], where, other)


def _statements(
    install: installers.Install, names: Sequence[str], where: str, other: str
) -> Iterator[SourceStatement]:
    if install.unknown:
        other = other or f"{install.unknown} is no known option, and may take it as its value"
    named = [option.value or "?" for option in install.options if option.name in _CHANNEL]
    channels = elsewhere([part for value in named for part in value.split(",")])
    for option in install.options:
        if option.name in {"-f", "--file"}:
            said = SourceStatement(where, str(option), "packages", (option.value or "",))
            yield said.from_elsewhere(other or channels)
        elif option.name in _CHANNEL:
            yield SourceStatement(where, f"{option.name}={option.value}", why="belongs to conda")
    for name in names:
        yield package(name, where, other, channels)


def listed(text: str, file: str) -> Iterator[SourceStatement]:
    """Yield what a list of conda's packages says, one a line."""
    for number, line in enumerate(text.splitlines(), 1):
        if entry := line.partition("#")[0].strip():
            yield package(entry, f"{file}:{number}")


def package(entry: str, where: str, other: str = "", channels: str = "") -> SourceStatement:
    """Return a package of conda: `pytorch::pytorch=2.1=py3.9_cuda11.7*`. other: why it may come
    from another channel than it seems; channels: why one of those may be no public one, if it names
    none itself."""
    channel, _, spec = entry.rpartition("::")
    why = other or (elsewhere(channel) if channel else channels)
    match = re.fullmatch(r"([\w.-]+)\s*((?:[=<>!~]=?[^=,\s]*(?:,[=<>!~]=?[^=,\s]*)*)?)(.*)", spec)
    name, bound, rest = match.groups() if match else (spec, "", "")
    if "$" in name:
        return SourceStatement(where, entry, why="what a variable says is not known here")
    if name == "python" and bound:
        version = re.sub(r"^=*\s*(\d[\d.]*).*", r"\1", bound)
        return SourceStatement(where, f"Python {bound}{rest}", "python", (version,))
    if name in {"pip", "python"}:
        return SourceStatement(where, entry, why="every image has it")
    asked = f"{name}{installers.bounds(bound)}"
    same = _SAME.get(package_of(name)) if match and not rest else None
    if same and installers.argument(asked, where).kind == "requirement":
        said = SourceStatement(where, entry, "requirement", (same + asked.removeprefix(name),))
        return said.from_elsewhere(why)
    framework = any(package_of(name) in each.aliases for each in frameworks.every())
    reason = _CUDA if _OF_CUDA.fullmatch(name) else _FRAMEWORK if framework else _OTHER
    said = SourceStatement(where, entry, "conda", (asked if match else spec,), reason)
    return replace(said, foreign=bool(why))
