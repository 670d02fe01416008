"""Which ways a step of PyTorch's goes on a GPU. What they take is asked in test_compile.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from builder.frameworks.torch.probes.gpu_ways import is_fused

ALL = ("flash", "mem_efficient", "cudnn", "math")


def attends(
    capability: str, kind: str, size: int = 64, allowed: tuple[str, ...] = ALL, **other: object
) -> bool:
    """Tell whether attention of 8 heads to 128 places is fused. size: of a head."""
    shape = (2, 8, 128, size)
    told = {name: SimpleNamespace(shape=shape, dim=lambda: 4) for name in ("query", "key", "value")}
    told |= {"attn_mask": None, "is_causal": False, **other}
    major, minor = map(int, capability.split("."))
    return is_fused((major, minor), kind, told, {name: name in allowed for name in ALL})


@pytest.mark.parametrize(
    ("capability", "kind", "size", "expected"),
    [
        ("7.0", "float32", 64, True),
        ("7.0", "float32", 33, True),
        ("8.0", "float32", 33, False),
        ("7.0", "float16", 64, True),
        ("7.0", "float16", 60, False),
        ("8.0", "float16", 60, True),  # flash attention fills it up
        ("7.0", "bfloat16", 64, False),
        ("7.5", "bfloat16", 64, False),
        ("8.0", "bfloat16", 64, True),
        ("8.0", "bfloat16", 512, True),
        ("9.0", "float64", 64, False),
    ],
)
def test_a_gpu_has_a_fused_attention_for_some_types_and_sizes(
    capability: str, kind: str, size: int, expected: bool
) -> None:
    assert attends(capability, kind, size) == expected


def test_a_mask_or_what_the_program_forbids_leaves_fewer() -> None:
    mask = {"attn_mask": object()}
    assert attends("8.0", "bfloat16", **mask) and not attends("8.0", "bfloat16", 60, **mask)
    assert not attends("8.0", "bfloat16", allowed=("math",))
    assert not attends("7.0", "float16", allowed=("flash", "math")), "from Ampere on"
    fewer = SimpleNamespace(shape=(2, 2, 128, 64), dim=lambda: 4)
    assert attends("8.0", "float16", key=fewer, value=fewer)
    assert not attends("7.0", "float16", key=fewer, value=fewer), (
        "flash attention alone groups heads"
    )
    three = SimpleNamespace(shape=(8, 128, 64), dim=lambda: 3)
    assert not attends("8.0", "float16", query=three, key=three, value=three)
    longer = SimpleNamespace(shape=(2, 8, 256, 60), dim=lambda: 4)
    assert attends("8.0", "float16", 60, key=longer, value=longer)
    assert not attends("8.0", "float16", 60, key=longer, value=longer, is_causal=True)
