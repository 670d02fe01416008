"""Where PyTorch says how many GPUs it sees: copied into images, for the guard
(trainer/guard/framework.py).

PyTorch lists nothing by itself. A program asks, and computes on the CPU where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODULE = "torch.cuda"
FUNCTIONS = ("is_available", "device_count")


def seen(_module: Any, _arguments: Sequence[Any], answer: Any) -> dict[str, int]:
    """Return the number of GPUs, or whether there is one."""
    return {"GPU": int(answer)}
