"""`builder lock --upgrade --propose`: newer locks, tried, on a branch of their own.

Everything is made in a copy of the last commit. The branch appears when all of it is known; nothing
is pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        made = [_change(copy, name, before[name], known[name]) for name in targets]
        if not any(one.differs for one in made):
            return None  # only the day of Debian's snapshot moved, if anything
        holes = tools.verify(copy.root, targets)
        after = tools.known(copy.root, targets)
        made = [
            replace(one, known_after=after[one.target], device_code=holes.get(one.target))
            for one in made
        ]
        text = proposal.text(made, copy.commit)
        commit = copy.save(branch, proposal.title(made))
    return Proposal(branch, commit, text, tuple(name for name in targets if holes.get(name)))


def _change(copy: GitCopy, target: str, before: Lock, known: Judged) -> TargetChange:
    """What changed, before anything is asked about the new versions."""
    return TargetChange(
        target=target,
        before=before,
        after=model.read(copy.root, target),
        layers=basechanges.changes(copy.root, target, copy.commit),
        instructions=changes.changes(copy.root, target, copy.commit),
        known=known,
        known_after=known,
        device_code=None,
    )
