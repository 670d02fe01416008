"""Whether device code runs on a GPU: the code of a library, or what a pruned image kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.config.stack import Runs
from builder.core.errors import CheckFailed
from builder.devicecode.pruning.fatbin import ELF, PTX, Target
from builder.devicecode.pruning.rule import choose, compute_capability

RUNS_ON = "training-image-factory.runs-on"
"""Label of a pruned image: the compute capability whose code it kept."""


def kernels_run(capability: str, carried: Sequence[str]) -> Runs:
    """Return how a library with code for `carried` (sm_70, compute_90 ...) runs on a device
    ("7.5").

    compute_90 means both machine code for 9.0, and PTX that any later device compiles.
    """
    targets = []
    for code in carried:
        kind, _, digits = code.partition("_")
        targets.append(Target(ELF, int(digits), ""))
        if kind == "compute":
            targets.append(Target(PTX, int(digits), ""))
    chosen = choose(targets, compute_capability(capability))
    if chosen is None:
        return "none"
    return "native" if chosen.kind == ELF else "ptx"


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
