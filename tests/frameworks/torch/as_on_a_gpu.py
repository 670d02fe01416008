"""Steps that go another way on a GPU than on the CPU, for test_compile.py. They run inside of an
image; the request is that of the hook, with the name of a step. Where it says "real", the step runs
on the CPU as it is, and the answer is what PyTorch's profiler saw."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from builder.frameworks import hook
from builder.frameworks.torch.probes.compile import Work

functional = nn.functional
x = torch.zeros(16, 2**20, requires_grad=True)
square = torch.zeros(2048, 2048, requires_grad=True)
heads = nn.MultiheadAttention(64, 1, dropout=0.1, batch_first=True)
layers = nn.ModuleList(
    nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU()) for _ in range(8)
)


def dropout() -> None:
    """Keep 64 MiB of input, as much of output, and a mask of bytes."""
    functional.dropout(x, 0.1).sum().backward()
    x.grad = None


def autocast() -> None:
    """Multiply in float16, and add up in float32."""
    with torch.autocast(device_type="cuda", dtype=torch.float16):
        made = x[:, :1024] @ x[:, :1024].t()
        assert made.dtype == torch.float16
        assert functional.softmax(made, dim=-1).dtype == torch.float32
        assert functional.gelu(made).dtype == torch.float16


def attention() -> None:
    """Attend to 4,096 places, whose products of 64 MiB are never there as a whole."""
    heads = x[:, : 2**12 * 16].reshape(1, 16, 4096, 16)
    functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).sum().backward()
    x.grad = None


def multihead(weights: bool = False) -> None:
    """Attend to 4,096 places by nn.MultiheadAttention, which keeps them where it returns them."""
    places = x[:, : 2**12 * 4].reshape(1, 4096, 64)
    made: torch.Tensor = heads(places, places, places, need_weights=weights)[0]
    made.sum().backward()
    clear()


def weights() -> None:
    multihead(True)


def bfloat16() -> None:
    """Attend in a type for which a V100 has no fused attention."""
    heads = x[:, : 2**12 * 4].reshape(1, 1, 4096, 64).bfloat16()
    functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
    clear()


def twice() -> None:
    """Use a weight twice: its two gradients are added up in place."""
    (square @ square).tanh().sum().backward()
    clear()


def kept() -> None:
    """Keep a gradient to which another is added."""
    seen: list[torch.Tensor] = []
    made = square @ square
    made.register_hook(seen.append)
    twice = made * 2
    twice.register_hook(seen.append)
    (torch.tanh(twice) @ square + torch.tanh(made)).sum().backward()
    clear()


def ordered() -> None:
    """Sort, whose gradient is written into zeros."""
    square.sort(1).values.tanh().sum().backward()
    clear()


def gathered() -> None:
    square.gather(1, torch.zeros(2048, 1024, dtype=torch.long)).tanh().sum().backward()
    clear()


def checkpoints(reentrant: bool = False) -> None:
    """Compute eight layers again, one after the other."""
    made = x[:, : 2**16].reshape(2048, 512)
    for layer in layers:
        made = made + checkpoint(layer, made, use_reentrant=reentrant)
    made.sum().backward()
    clear()


def reentrant() -> None:
    checkpoints(True)


def recomputed() -> None:
    """Attend and drop out again, in the same way as before."""

    def layer(places: torch.Tensor) -> torch.Tensor:
        heads = places.reshape(1, 1, 4096, 64)
        return functional.dropout(functional.scaled_dot_product_attention(heads, heads, heads), 0.1)

    checkpoint(layer, x[:, : 2**14].reshape(4096, 64), use_reentrant=False).sum().backward()
    clear()


def clear() -> None:
    for each in (x, square, *heads.parameters(), *layers.parameters()):
        each.grad = None


def seen(step: Callable[[], None]) -> int:
    """Return the bytes that a step takes at the most. The profiler is no mode: autograd works as it
    does without."""
    step()
    changes: list[tuple[int, int]] = []

    def walk(events: Iterable[Any]) -> None:
        for event in events:
            if event.tag == torch._C._profiler._EventType.Allocation:
                changes.append((event.start_time_ns, event.extra_fields.alloc_size))
            walk(event.children)

    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    walk(profiler.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    held = most = 0
    for _, size in sorted(changes):
        held += size
        most = max(most, held)
    return most


request = json.loads(sys.argv[1])
step: Callable[[], None] = globals()[request["named"]]
if request.get("real"):
    hook.answer({"seen": seen(step)})
else:
    Work(request).take(step, ())
