"""Steps that go another way on a GPU than on the CPU, for test_compile.py. They run inside of an
image; the request is that of the hook, with the name of a step."""

import json
import sys
from collections.abc import Callable

import torch
from torch import nn

from builder.frameworks.torch.probes.compile import Work

functional = nn.functional
x = torch.zeros(16, 2**20, requires_grad=True)


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


request = json.loads(sys.argv[1])
steps: dict[str, Callable[[], None]] = {f.__name__: f for f in (dropout, autocast, attention)}
Work(request).take(steps[request["named"]], ())
