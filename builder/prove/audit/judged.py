"""Libraries that were read, and the GPUs that they are judged for: values, and the refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.core.errors import CheckFailed
from builder.devicecode.pruning.rule import ComputeCapability
from builder.devicecode.verdict import Audit, Support, Verdict, as_dict


@dataclass(frozen=True)
class Gpu:
    """A GPU by the name that was asked for."""

    name: str
    capability: ComputeCapability


@dataclass(frozen=True)
class Audited:
    """One source (a target, an image, or paths) and the GPUs to judge it for.

    wanted: refuse the source if one of `devices` does not run it. allow_ptx: whether kernels that
    the GPU's machine has to compile first count as running. note: why nothing could be read.
    secrets: what the image's layers hold that nobody should have, a line each.
    """

    name: str
    found: Audit
    devices: tuple[Gpu, ...]
    wanted: bool = False
    allow_ptx: bool = True
    note: str = ""
    secrets: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[tuple[Gpu, Verdict], ...]:
        return tuple((device, self.found.verdict(device.capability)) for device in self.devices)

    @property
    def refused(self) -> tuple[tuple[Gpu, Verdict], ...]:
        """The GPUs that were asked for and do not run it."""
        return tuple(
            (device, verdict)
            for device, verdict in self.verdicts
            if self.wanted and not passes(verdict, self.allow_ptx)
        )

    def as_dict(self) -> dict[str, object]:
        """JSON-ready data, with `accelerators` in the order of `verdicts`."""
        capabilities = [device.capability for device in self.devices]
        return {
            "source": self.name,
            "accelerators": [device.name for device in self.devices],
            "refused": [device.name for device, _ in self.refused],
            "secrets": list(self.secrets),
            **as_dict(self.found, capabilities),
        }


def passes(verdict: Verdict, allow_ptx: bool) -> bool:
    """Whether a GPU runs every library. allow_ptx: it may compile for minutes before it does."""
    return verdict.runs and (allow_ptx or verdict.status != Support.PTX)


def instead(verdict: Verdict, target: str) -> str:
    """What to do about a verdict that does not pass, in one line."""
    if verdict.instead:
        return f"take {verdict.instead}"
    if verdict.status == Support.NO_DEVICE_CODE:
        return "no library holds device code: check that TensorFlow's CUDA packages are in the lock"
    return f"see builder audit {target}, and builder explain {target} for where it comes from"


def require(found: Sequence[Audited]) -> None:
    """Raise CheckFailed where a source does not run on a GPU that was asked for, or where a layer
    holds a secret."""
    refused = [(one, device, verdict) for one in found for device, verdict in one.refused]
    if refused:
        one, device, verdict = refused[0]
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise CheckFailed(f"{one.name}: {device.name} {verdict}{more}", instead(verdict, one.name))
    secrets = [(one.name, secret) for one in found for secret in one.secrets]
    if secrets:
        name, secret = secrets[0]
        more = f" (and {len(secrets) - 1} more)" if len(secrets) > 1 else ""
        raise CheckFailed(
            f"{name}: {secret}{more}",
            "a layer keeps what a later one deletes: build it again without it, and revoke it",
        )
