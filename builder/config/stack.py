"""The stack of an image: the versions that an image.yaml resolves to, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from builder.config.fields import PruneMode
from builder.config.image_yaml import ImageSpec
from builder.core.errors import CheckFailed
from builder.devicecode.pruning.fatbin import ELF, Target
from builder.devicecode.pruning.rule import choose, compute_capability
from builder.facts import Source
from builder.facts.accelerators import Accelerator

OWN_PYTHON: Mapping[str, str] = {"3.11": "bookworm", "3.13": "trixie"}
"""Python version -> the Debian suite whose Python our own base takes."""

GLIBC: Mapping[str, int] = {"bookworm": 36, "trixie": 40}
"""The 2.x of each suite's glibc, as far as uv knows them: trixie has 2.41, uv knows 2.40."""

Runs = Literal["native", "ptx", "none"]
"""How kernels run on a device: as machine code, compiled from PTX at the first start, or not."""


@dataclass(frozen=True)
class Fact:
    """One reason for a version."""

    statement: str
    value: str
    source: str
    verified: bool
    """Whether we have read it there, or tried it."""

    @classmethod
    def of(cls, statement: str, value: str, source: Source) -> Fact:
        return cls(statement, value, source.text, source.verified)


@dataclass(frozen=True)
class Prune:
    """What device code stays in the libraries of `only`: what compute capability `keep` runs.

    The image then runs on that capability and on newer minors of its major.
    """

    keep: str
    only: PruneMode

    def keeps(self, capability: str) -> bool:
        kept, other = compute_capability(self.keep), compute_capability(capability)
        return kept.major == other.major and kept.minor <= other.minor


@dataclass(frozen=True)
class Stack:
    """The versions of an image. What does not apply (CUDA on a TPU) is None."""

    spec: ImageSpec
    accelerator: Accelerator
    distribution: str
    """The framework's name on PyPI."""
    release: str
    """Its version; see also `requirement`."""
    python: str
    cuda: str | None = None
    cudnn: str | None = None
    compute_capability: str | None = None
    constraints: Mapping[str, str] = field(default_factory=dict)
    """Package -> the exact version that a lock has to hold."""
    runs: Runs = "native"
    """How the framework's kernels run; "ptx" takes minutes at the first start."""
    prune: Prune | None = None
    """None where device code for other GPUs stays."""
    facts: tuple[Fact, ...] = ()
    """The reasons, in the order of a person's questions."""
    extra: str = ""
    """What the requirement asks of the distribution beside itself."""

    @property
    def requirement(self) -> str:
        """The requirement for a resolver: `tensorflow[and-cuda]==2.21.0`."""
        return f"{self.distribution}{self.extra}=={self.release}"

    @property
    def prune_mode(self) -> PruneMode:
        """What is pruned, as image.yaml says it; "off" also where pruning does not apply."""
        return self.prune.only if self.prune else "off"


class RefusedError(Exception):
    """A combination that cannot work.

    field: the key of image.yaml at fault, with dots. fix: what to write instead; without one, the
    nearest release that works is looked for, and `otherwise` is offered beside it.
    """

    def __init__(self, field: str, what: str, fix: str = "", *, otherwise: str = "") -> None:
        super().__init__(what)
        self.field, self.what, self.fix, self.otherwise = field, what, fix, otherwise


# --- whether device code runs on a GPU -----------------------------------------------------------

RUNS_ON = "training-image-factory.runs-on"
"""Label of a pruned image: the compute capability whose code it kept."""


@cache
def runs_on(code: str, capability: str) -> bool:
    """Return whether machine code for one compute capability runs on another."""
    device = compute_capability(capability)
    return choose([Target(ELF, compute_capability(code).architecture, "")], device) is not None


def check_runs_on(labels: Mapping[str, str], capability: str | None, target: str) -> None:
    """Raise CheckFailed where an image's label says that it was pruned for another accelerator."""
    kept = labels.get(RUNS_ON)
    if kept and not (capability and runs_on(kept, capability)):
        raise CheckFailed(
            f"{target}: its image has device code for compute capability {kept} only, and "
            f"{target} is now for {capability or 'no GPU'}",
            f"builder image {target}",
        )
