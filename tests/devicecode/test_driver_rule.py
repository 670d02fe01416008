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
    ("device", "code", "expected"),
    [
        ("7.0", "sm_70", True),
        ("7.5", "sm_70", True),  # an older minor of the same major
        ("7.0", "sm_75", False),  # never a newer one
        ("8.0", "sm_75", False),  # never another major
        ("8.9", "sm_86", True),
        ("12.1", "sm_120", True),
        ("9.0", "sm_90a", True),
        ("9.1", "sm_90a", False),  # architecture-specific: that one device
        ("10.3", "sm_100f", True),  # family-specific: the family
        ("12.0", "sm_100f", False),
        ("8.9", "sm_87", False),  # Orin's code on a desktop GPU
        ("7.5", "sm_72", False),  # Xavier's
        ("7.2", "sm_72", True),
        ("8.7", "sm_80", False),  # and the other way round
        ("9.0", "compute_80", True),  # PTX of any older device
        ("8.0", "compute_90", False),
        ("12.0", "compute_90a", False),
        ("12.0", "compute_100f", False),
        ("7.0", "lto_50", False),  # neither runs by itself
        ("10.0", "mercury_100", False),
    ],
)
def test_compatibility(device: str, code: str, expected: bool) -> None:
    assert runs(target(code), compute_capability(device)) is expected


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


@pytest.mark.parametrize("text", ["", "7", "sm_70", "70", "7.0.1", "V100", "0.5", "7.10"])
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a compute capability") as error:
        compute_capability(text)
    assert "7.0" in error.value.fix
