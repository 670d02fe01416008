"""`builder lock --upgrade --propose`: newer locks, tried, on a branch of their own.

Everything is made in a copy of the last commit. The branch appears when all of it is known; nothing
is pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core import gitcopy
from builder.core.gitcopy import GitCopy
from builder.lock import model
from builder.lock.model import Lock
from builder.pipeline import proposal
from builder.pipeline.proposal import TargetChange
from builder.render import basechanges, changes, cloud, committed
from builder.spec import catalogue
from builder.trust.advisories import Judged

BRANCH = "newer-versions"


@dataclass(frozen=True)
class Tools:
    """What asks the world, each called with the folder of a project and its targets.

    lock: writes the newest locks. known: what is known against the locks. verify: reads the wheels,
    and says what speaks against those of GPU targets.
    """

    lock: Callable[[Path, Sequence[str]], object]
    known: Callable[[Path, Sequence[str]], Mapping[str, Judged]]
    verify: Callable[[Path, Sequence[str]], Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Proposal:
    """A branch. text: of its pull request. refused: the targets whose wheels the audit refuses."""

    branch: str
    commit: str
    text: str
    refused: tuple[str, ...]


def propose(root: Path, targets: Sequence[str], tools: Tools, branch: str) -> Proposal | None:
    """Make the branch; None where no image would change.

    Raises InputError for a tree with changes or a branch that is there, and what the tools raise;
    the repository is then as it was.
    """
    gitcopy.check(root, branch)
    known = tools.known(root, targets)
    with gitcopy.of_head(root) as copy:
        before = {target: model.read(copy.root, target) for target in targets}
        tools.lock(copy.root, targets)
        committed.write(copy.root, targets)
        if tuple(targets) == catalogue.targets(root):
            cloud.write_cloud(copy.root)
        if not any(_differs(copy, name, before[name]) for name in targets):
            return None  # only the day of Debian's snapshot moved, if anything
        holes = tools.verify(copy.root, targets)
        after = tools.known(copy.root, targets)
        made = [_change(copy, name, before[name], known[name], after[name], holes.get(name))
                for name in targets]  # fmt: skip
        text = proposal.text(made, copy.commit)
        commit = copy.save(branch, proposal.title(made))
    return Proposal(branch, commit, text, tuple(name for name in targets if holes.get(name)))


def _differs(copy: GitCopy, target: str, before: Lock) -> bool:
    """Whether the target's image would be another one."""
    return bool(
        proposal.moved(before, model.read(copy.root, target))
        or basechanges.changes(copy.root, target, copy.commit)
        or changes.changes(copy.root, target, copy.commit)
    )


def _change(
    copy: GitCopy,
    target: str,
    before: Lock,
    known: Judged,
    after: Judged,
    holes: tuple[str, ...] | None,
) -> TargetChange:
    return TargetChange(
        target,
        before,
        model.read(copy.root, target),
        basechanges.changes(copy.root, target, copy.commit),
        changes.changes(copy.root, target, copy.commit),
        known,
        after,
        holes,
    )
