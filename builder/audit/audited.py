"""What was read of one source, the GPUs that it is judged for, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from builder.core.errors import CheckFailed
from builder.devicecode.pruning.rule import ComputeCapability, compute_capability
from builder.devicecode.verdict import Audit, Support, Verdict
from builder.facts import accelerators, frameworks, known_bad
from builder.facts.known_bad import FoundBad


@dataclass(frozen=True)
class Gpu:
    """A GPU by the name that a person used."""

    name: str
    capability: ComputeCapability


@dataclass(frozen=True)
class Audited:
    """One source (a target, an image, or paths) and the GPUs to judge it for."""

    name: str
    libraries: Audit
    devices: tuple[Gpu, ...]
    required: bool = False
    """Refuse the source if one of `devices` does not run it."""
    allow_ptx: bool = True
    """Whether kernels that the GPU's machine has to compile first count as running."""
    is_target: bool = False
    """Whether it is an image of the project."""
    note: str = ""
    """Why nothing could be read."""
    secrets: tuple[str, ...] = ()
    """What the image's layers hold that nobody should have, a line each."""

    @property
    def verdicts(self) -> tuple[tuple[Gpu, Verdict], ...]:
        return tuple((gpu, self.libraries.verdict(gpu.capability)) for gpu in self.devices)

    @cached_property
    def known_bad(self) -> tuple[tuple[Gpu, FoundBad], ...]:
        """What is known to fail of the versions that installed the libraries, on each GPU."""
        installed = [each for each in self.libraries.libraries if each.version]
        packages = {each.package: each.version for each in installed}
        for framework in frameworks.every():  # its compiled half has its release, too
            for each in installed:
                if framework.module and re.search(rf"(^|/)({framework.module})", each.path):
                    packages.setdefault(min(framework.distributions), each.version)
        return tuple(
            (gpu, found)
            for gpu in self.devices
            for found in known_bad.find(packages, str(gpu.capability))
        )

    @property
    def refused(self) -> tuple[tuple[Gpu, Verdict], ...]:
        """The GPUs that were named and do not run it."""
        return tuple(
            (gpu, verdict)
            for gpu, verdict in self.verdicts
            if self.required and not passes(verdict, self.allow_ptx)
        )


def passes(verdict: Verdict, allow_ptx: bool) -> bool:
    """Tell whether a GPU runs every library. allow_ptx: it may compile for minutes before that."""
    return verdict.runs and (allow_ptx or verdict.status != Support.PTX)


def instead(verdict: Verdict, target: str = "") -> str:
    """Return what to do about a verdict that does not pass, in one line. target: "" where the
    source is none."""
    if verdict.instead:
        return f"take {verdict.instead}"
    if verdict.status == Support.NO_DEVICE_CODE:
        fix = "in the lock" if target else "among these files"
        return f"no library holds device code: check that the CUDA packages are {fix}"
    if not target:
        return "take a release whose libraries hold code for this GPU, or another GPU"
    return f"see builder audit {target}, and builder explain {target} for where it comes from"


def require(sources: Sequence[Audited]) -> None:
    """Raise CheckFailed where a source does not run on a GPU that was named, where its versions are
    known to fail there, or where a layer holds a secret."""
    refused = [(source, gpu, verdict) for source in sources for gpu, verdict in source.refused]
    if refused:
        source, gpu, verdict = refused[0]
        message = f"{source.name}: {gpu.name} {verdict}{_more(refused)}"
        raise CheckFailed(message, instead(verdict, source.name if source.is_target else ""))
    failing = [
        (f"{source.name}: {gpu.name}: {found}", found.row.fix)
        for source in sources
        for gpu, found in source.known_bad
        if source.required and found.row.fails
    ]
    if failing:
        message, fix = failing[0]
        raise CheckFailed(f"{message}{_more(failing)}", fix)
    secrets = [f"{source.name}: {secret}" for source in sources for secret in source.secrets]
    if secrets:
        raise CheckFailed(
            f"{secrets[0]}{_more(secrets)}",
            "a layer keeps what a later one deletes: build it again without it, and revoke it",
        )


def gpu_named(name: str) -> Gpu:
    """Return a GPU by name (v100) or compute capability (7.0). Raises InputError."""
    if re.fullmatch(r"\d+\.\d", name):
        return Gpu(name, compute_capability(name))
    called, capability = accelerators.gpu(name)
    return Gpu(called, compute_capability(capability))


def known_gpus() -> tuple[Gpu, ...]:
    """Return one GPU of each compute capability that images are made for."""
    first: dict[str, Gpu] = {}
    for known in accelerators.accelerators().values():
        if known.compute_capability and not known.refused:
            first.setdefault(known.compute_capability, gpu_named(known.name))
    return tuple(first.values())


def _more(several: Sequence[object]) -> str:
    return f" (and {len(several) - 1} more)" if len(several) > 1 else ""
