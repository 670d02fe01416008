"""What changed in a target's Dockerfile since a commit, and the layers that this makes anew.

What changed in a base: builder/render/basechanges.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.core import git
from builder.core.errors import InputError, OutsideError
from builder.core.templates import DOCKERFILE
from builder.lock import model, pins
from builder.render.committed import text_of
from builder.render.dockerfiles import render_target
from builder.spec import catalogue


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile; `reads`: name -> text of the lock files that it installs."""

    keyword: str
    text: str
    line: int
    reads: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The instruction in a few words: the lock files that it installs, else its first line."""
        if self.reads:
            return f"{self.keyword} install {', '.join(self.reads)}"
        first = self.text.split("\n", 1)[0]
        return first if len(first) <= 72 else first[:69] + "..."

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The key of BuildKit's cache: the instruction, and the files that it reads."""
        return self.text, tuple(sorted(self.reads.items()))


@dataclass(frozen=True)
class RebuiltLayer:
    """A layer that is made anew. bytes: about its download size, None where it is not known."""

    instruction: str
    bytes: int | None


@dataclass(frozen=True)
class InstructionChange:
    """An instruction that was added, removed or changed, and the layers that this makes anew.

    change: "added", "removed" or "changed". detail: a line for each version that changed in the
    files that it installs.
    """

    file: str
    line: int
    change: str
    instruction: str
    detail: tuple[str, ...]
    rebuilds: tuple[RebuiltLayer, ...]


def changes(root: Path, target: str, since: str = "HEAD") -> tuple[InstructionChange, ...]:
    """The changes of a target's Dockerfile since a commit, were it rendered now.

    Outside of git, the Dockerfile in the folder is compared. A layer that two changes make anew is
    named at the first of them. Raises what `commit` raises.
    """
    folder = root / catalogue.IMAGES / target
    held = model.read(root, target)
    names = (*model.WHEELS, model.APT, model.APT_EXTRA)
    at = commit(folder, since)
    before = {name: text for name in names if (text := text_at(folder / name, at)) is not None}
    old = text_at(folder / DOCKERFILE, at)
    return tuple(
        _changes(
            catalogue.shown(folder / DOCKERFILE),
            tuple(instructions(old or "", before)),
            tuple(instructions(render_target(root, target).dockerfile, held.files)),
        )
    )


def commit(folder: Path, since: str) -> str | None:
    """The hash of a commit; None outside of git. Raises InputError for what is no commit,
    OutsideError where git refuses the repository."""
    try:
        inside = git.run(folder, "rev-parse", "--is-inside-work-tree")
    except OutsideError:  # git is not installed
        return None
    if inside.text is None:
        if "not a git repository" in inside.error:
            return None
        raise _refused(inside)
    found = git.run(folder, "rev-parse", "--verify", "--end-of-options", f"{since}^{{commit}}")
    if found.text is not None:
        return found.text.strip()
    if "Needed a single revision" in found.error or "bad revision" in found.error:
        raise InputError(f"{since!r} is no commit of this repository", "name one: HEAD, a tag")
    raise _refused(found)


def text_at(path: Path, since: str | None) -> str | None:
    """The text of a file at a commit, None where it has none; the file's own without a commit."""
    if since is None:
        return text_of(path)
    answer = git.run(path.parent, "ls-tree", since, "--", f"./{path.name}")
    if answer.text == "":
        return None
    if answer.text is not None:
        answer = git.run(path.parent, "show", f"{since}:./{path.name}")
    if answer.text is None:
        raise _refused(answer)
    return answer.text


def _refused(answer: git.GitAnswer) -> OutsideError:
    return OutsideError(f"git: {answer.reason}", answer.fix("run git fsck there"))


def instructions(text: str, reads: Mapping[str, str]) -> Iterator[Instruction]:
    """The instructions of a Dockerfile: comments left out, continued lines and heredocs joined."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [line]
        while parts[-1].endswith("\\"):
            parts.append(next(lines, (0, ""))[1])
        if heredoc := re.search(r"<<-?['\"]?(\w+)['\"]?$", parts[-1]):
            for _, inside in lines:
                parts.append(inside)
                if inside == heredoc[1]:
                    break
        whole = "\n".join(parts)
        names = re.findall(r"type=bind,source=([\w.-]+)", whole)
        yield Instruction(
            whole.split(None, 1)[0].upper(),
            whole,
            number,
            {name: reads[name] for name in names if name in reads},
        )


def _changes(
    file: str, old: tuple[Instruction, ...], new: tuple[Instruction, ...]
) -> Iterator[InstructionChange]:
    matcher = difflib.SequenceMatcher(None, [i.key for i in old], [i.key for i in new], False)
    told: set[int] = set()
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        if kind == "equal":
            continue
        pairs = list(_pairs(old[a1:a2], new[b1:b2]))
        for before, after in pairs:
            at = new.index(after) if after else b1
            anew = (
                [
                    index
                    for index, one in enumerate(new)
                    if index not in told and index >= at and _rebuilt(one, one is after)
                ]
                if _invalidates(after or before)
                else []
            )
            told.update(anew)
            one = after or before
            assert one is not None
            yield InstructionChange(
                file,
                one.line,
                "changed" if before and after else "added" if after else "removed",
                one.summary,
                _detail(before, after),
                tuple(RebuiltLayer(new[index].summary, _bytes(new[index])) for index in anew),
            )


def _pairs(
    old: tuple[Instruction, ...], new: tuple[Instruction, ...]
) -> Iterator[tuple[Instruction | None, Instruction | None]]:
    """Old and new instructions that belong together: same keyword, same files, in order."""
    left = list(old)
    for after in new:
        before = next(
            (
                o
                for o in left
                if o.keyword == after.keyword and o.reads.keys() == after.reads.keys()
            ),
            None,
        )
        if before:
            left.remove(before)
        yield before, after
    for before in left:
        yield before, None


def _invalidates(one: Instruction | None) -> bool:
    """Whether the steps below are made anew. A changed label or command does not do that."""
    return one is not None and one.keyword not in ("LABEL", "ENTRYPOINT", "CMD")


def _rebuilt(one: Instruction, itself: bool) -> bool:
    """Whether an instruction's layer is made anew. A linked copy does not depend on those below."""
    return one.keyword == "RUN" or (
        one.keyword in ("COPY", "ADD") and (itself or "--link" not in one.text)
    )


def _bytes(one: Instruction) -> int | None:
    sizes = [pin.bytes for text in one.reads.values() for pin in pins.parse(text)]
    if not sizes or None in sizes:
        return None
    return sum(size for size in sizes if size is not None)


def _detail(before: Instruction | None, after: Instruction | None) -> tuple[str, ...]:
    if not before or not after:
        return ()
    return pins.moves(_versions_of(before), _versions_of(after))


def _versions_of(one: Instruction) -> dict[str, str]:
    text = "".join(one.reads.values())
    apt = re.findall(r"^([a-z0-9][a-z0-9+.-]+)=([^=\s]\S*)$", text, re.M)
    return {pin.name: pin.version for pin in pins.parse(text)} | dict(apt)
