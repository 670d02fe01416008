"""Which entry the driver runs: rows of cuda-fatbin-precedence's matrix, and NVIDIA's own rules."""

from __future__ import annotations

import pytest

from builder.devicecode.pruning.errors import InputError
from builder.devicecode.pruning.fatbin import ELF, LTO_IR, PTX, Target
from builder.devicecode.pruning.rule import choose, compute_capability, runs

KINDS = {"sm": ELF, "compute": PTX, "lto": LTO_IR, "mercury": 0x10}


def target(text: str) -> Target:
    kind, _, number = text.partition("_")
    digits = number.rstrip("af")
    return Target(KINDS[kind], int(digits), number[len(digits) :])


@pytest.mark.parametrize(
    ("device", "yes", "no"),
    [
        ("7.0", "sm_70", "sm_75 lto_50"),  # never a newer minor
        ("7.2", "sm_72", ""),
        ("7.5", "sm_70", "sm_72"),  # an older minor of the same major; Xavier's code is its own
        ("8.0", "", "sm_75 compute_90"),  # never another major
        ("8.7", "", "sm_80"),  # Orin
        ("8.9", "sm_86", "sm_87"),
        ("9.0", "sm_90a compute_80", ""),  # PTX of any older device
        ("9.1", "", "sm_90a"),  # architecture-specific: that one device
        ("10.0", "", "mercury_100"),
        ("10.3", "sm_100f", ""),  # family-specific: the family
        ("12.0", "", "sm_100f compute_90a compute_100f"),
        ("12.1", "sm_120", ""),
    ],
)
def test_compatibility(device: str, yes: str, no: str) -> None:
    capability = compute_capability(device)
    assert [runs(target(code), capability) for code in yes.split()] == [True] * len(yes.split())
    assert [runs(target(code), capability) for code in no.split()] == [False] * len(no.split())


@pytest.mark.parametrize(
    ("device", "code", "chosen"),
    [
        ("8.9", "sm_80 sm_86", "sm_86"),
        ("8.9", "sm_86 sm_80", "sm_86"),
        ("8.9", "sm_89 sm_86", "sm_89"),
        ("8.9", "sm_75", None),
        ("8.9", "sm_75 compute_75", "compute_75"),
        ("8.9", "compute_89 sm_86", "sm_86"),  # an older cubin beats exactly fitting PTX
        ("8.9", "compute_50 compute_80 compute_90", "compute_80"),
        ("9.0", "sm_90a sm_90", "sm_90"),
        ("7.0", "", None),
        ("7.0", "lto_70 compute_52", "compute_52"),
    ],
)
def test_choice(device: str, code: str, chosen: str | None) -> None:
    picked = choose([target(t) for t in code.split()], compute_capability(device))
    assert (str(picked) if picked else None) == chosen


@pytest.mark.parametrize("text", ["", "7", "sm_70", "7.0.1", "V100", "0.5", "7.10"])
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a compute capability") as error:
        compute_capability(text)
    assert "7.0" in error.value.fix
