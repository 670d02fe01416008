"""Lets a step of PyTorch's go the ways of a GPU on a CPU, for the hook of the check `compile`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

SDPA, DROPOUT = "query key value attn_mask dropout_p is_causal", "input p training inplace"
"""Arguments by their place."""
FLOAT32 = (
    "acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity"
    " cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div"
    " l1_loss layer_norm log log10 log1p log2 log_softmax margin_ranking_loss mse_loss"
    " multi_margin_loss multilabel_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow"
    " __pow__ prod __rdiv__ reciprocal renorm __rpow__ rsqrt __rtruediv__ sinh smooth_l1_loss"
    " soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss"
)
"""What autocast calculates in float32 on a GPU, and not on a CPU (docs.pytorch.org, Automatic Mixed
Precision package, CUDA Ops that can autocast to float32)."""


def prepare() -> None:
    """Let optimizers handle all tensors at once, as on a GPU, and torch.compile compile nothing."""
    import_module("torch._dynamo").config.disable = True
    optimizer: Any = import_module("torch.optim.optimizer")
    with contextlib.suppress(AttributeError):
        known = optimizer._get_foreach_kernels_supported_devices
        optimizer._get_foreach_kernels_supported_devices = lambda: [*known(), "cpu"]


@contextlib.contextmanager
def taken(torch: Any, calls: dict[str, dict[str, int]]) -> Iterator[None]:
    """Let autocast, dropout and attention take the ways that they take on a GPU.

    autocast: there is no GPU, so PyTorch would leave "cuda" out. dropout: a GPU keeps a mask of
    bytes, the CPU one of the input's type (aten/src/ATen/native/Dropout.cpp, `dropout`). attention:
    the CPU's fused one has no dropout, which takes no memory on a GPU; one that has to be cuDNN's
    is noted in `calls`.
    """
    begin, function = torch.autocast.__init__, torch.nn.functional
    modes: Any = import_module("torch.overrides")
    if not hasattr(torch, "get_autocast_dtype"):  # before PyTorch 2.4
        yield
        return

    def begin_on_cpu(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        begin(self, "cpu", dtype or torch.get_autocast_dtype(device_type), enabled, cache_enabled)

    class Ways(modes.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, called: Any, _kinds: Any, given: Any = (), named: Any = None
        ) -> Any:
            named, name = named or {}, getattr(called, "__name__", "")
            if called is function.scaled_dot_product_attention:
                told = {**of(given, SDPA), **named, "dropout_p": 0.0}
                with as_cudnn(torch, str(told["query"].dtype)[6:], calls):
                    return called(**told)
            if called is function.dropout:
                told = {"p": 0.5, "training": True, "inplace": False, **of(given, DROPOUT), **named}
                if told["training"] and not told["inplace"]:
                    return torch.native_dropout(told["input"], told["p"], True)[0]
            if torch.is_autocast_enabled("cpu") and name in FLOAT32.split():
                given, named = torch.utils._pytree.tree_map_only(torch.Tensor, wide, (given, named))
            return called(*given, **named)

    def of(given: Any, names: str) -> dict[str, Any]:
        return dict(zip(names.split(), given))  # noqa: B905 - Python 3.8

    def wide(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    torch.autocast.__init__ = begin_on_cpu
    try:
        with Ways():
            yield
    finally:
        torch.autocast.__init__ = begin


@contextlib.contextmanager
def as_cudnn(torch: Any, kind: str, calls: dict[str, dict[str, int]]) -> Iterator[None]:
    """Let a fused attention of the CPU stand for cuDNN's, where the program lets PyTorch take no
    other, and note it. kind: its type."""
    allowed = torch.backends.cuda
    others = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled")
    only = getattr(allowed, "cudnn_sdp_enabled", lambda: False)()  # from PyTorch 2.5 on
    if not only or any(getattr(allowed, each)() for each in others):
        yield
        return
    kinds = calls.setdefault("_scaled_dot_product_cudnn_attention", {})
    kinds[kind] = kinds.get(kind, 0) + 1
    backend = import_module("torch.nn.attention").SDPBackend
    with import_module("torch.nn.attention").sdpa_kernel([backend.FLASH_ATTENTION, backend.MATH]):
        yield
