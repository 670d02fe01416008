"""Lets a step of PyTorch's go the ways of a GPU on a CPU, for the hook of the check `compile`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from builder.frameworks import cudnn

SDPA, DROPOUT = "query key value attn_mask dropout_p is_causal", "input p training inplace"
"""Arguments by their place."""
ENGINE = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
"""Where Python begins it."""
WRITES = ("index_add", "index_put", "scatter", "scatter_add")
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


class InPlace:
    """Tells where autograd's engine writes into a tensor that nobody else holds.

    It makes another one while a mode watches it (`isTensorSubclassLike`), as it adds a gradient to
    the one before (torch/csrc/autograd/input_buffer.cpp, `accumulate`), and as it writes one into
    zeros: gather, index, max, sort (torch/csrc/autograd/FunctionsManual.cpp).
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.alone: tuple[int, ...] = ()
        """The references to a gradient that the engine alone holds, as the first sum has it."""
        self.zeros = 0
        """The storage of zeros, where the engine's last operation has made them."""

    def begin(self) -> None:
        """Let the engine add up once, while it is watched."""
        with self.torch.enable_grad():
            one = self.torch.ones(1, requires_grad=True)
            (one * one).backward()

    def taken(self, name: str, given: Any, made: Any) -> Any:
        """Return the tensor that the engine writes an operation's result into, else None."""
        if not sys._getframe(2).f_code.co_filename.endswith(ENGINE):
            return None
        before, self.zeros = self.zeros, 0
        if name in ("zeros", "new_zeros"):
            self.zeros = made.untyped_storage()._cdata
        elif name in WRITES and given[0].untyped_storage()._cdata == before:
            return given[0]
        elif name == "add" and not self.torch.is_grad_enabled():
            use = self.torch._C._storage_Use_Count(given[0].untyped_storage()._cdata)
            found = (given[0]._use_count(), sys.getrefcount(given[0]), use)
            self.alone = self.alone or found
            return given[0] if found == self.alone else None
        return None


@contextlib.contextmanager
def taken(torch: Any, capability: str, watch: Any) -> Iterator[None]:
    """Let autocast, dropout and attention take the ways that they take on a GPU.

    autocast: there is no GPU, so PyTorch would leave "cuda" out. dropout: a GPU keeps a mask of
    bytes, the CPU one of the input's type (aten/src/ATen/native/Dropout.cpp, `dropout`). attention:
    fused where a GPU has that (`attended`).
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
                told = {"attn_mask": None, "is_causal": False, **of(given, SDPA), **named}
                there = tuple(map(int, capability.split(".")))
                return attended(torch, called, there, told, watch)
            if called is function.dropout:
                told = {"p": 0.5, "training": True, "inplace": False, **of(given, DROPOUT), **named}
                if told["training"] and not told["inplace"]:
                    return torch.native_dropout(told["input"], told["p"], True)[0]
            if torch.is_autocast_enabled("cpu") and name in FLOAT32.split():
                given, named = torch.utils._pytree.tree_map_only(torch.Tensor, wide, (given, named))
            inside = getattr(called, "__globals__", None) is vars(function)
            if inside or called in (torch.Tensor.backward, torch.autograd.grad):
                with self:  # what it calls goes these ways, too: what a checkpoint computes again
                    return within(called)(*given, **named)
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


@cache
def within(called: Any) -> Any:
    """Return a function of PyTorch's that does not ask a mode again for itself."""
    known = called.__globals__
    never = {name: lambda *_: False for name in known if name.startswith("has_torch_function")}
    made = FunctionType(called.__code__, {**known, **never}, None, called.__defaults__)
    made.__kwdefaults__ = called.__kwdefaults__
    return made


def attended(
    torch: Any, called: Any, capability: tuple[int, ...], told: dict[str, Any], watch: Any
) -> Any:
    """Return what attention gives: a fused one, or the products themselves, as a GPU does it.

    told: its arguments. watch: its `calls` get a note where the program lets PyTorch take no other
    than cuDNN's; see `fused`.
    """
    names = ("query", "key", "value")
    if torch.is_autocast_enabled("cpu"):
        told.update({name: told[name].to(torch.get_autocast_dtype("cpu")) for name in names})
    allowed, nn = torch.backends.cuda, import_module("torch.nn.attention")
    ways = {
        name: getattr(allowed, f"{name}_sdp_enabled", lambda: False)()
        for name in ("flash", "mem_efficient", "cudnn", "math")
    }
    kind = str(told["query"].dtype)[6:]
    only = ways["cudnn"] and sum(ways.values()) == 1
    if only:
        kinds = watch.calls.setdefault("_scaled_dot_product_cudnn_attention", {})
        kinds[kind] = kinds.get(kind, 0) + 1
    if (only and told["query"].dim() == 4) or is_fused(capability, kind, told, ways):
        mask = told["attn_mask"]
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.to(told["query"].dtype)  # what is added to the products
        return fused(torch).apply(*(told[name] for name in names), mask, told["is_causal"], watch)
    with nn.sdpa_kernel([nn.SDPBackend.MATH]):
        return called(**told)


@cache
def fused(torch: Any) -> Any:
    """Return a fused attention: it keeps what goes in and out, and a number of each row
    (aten/src/ATen/native/transformers/cuda/attention.cu). The `flops` and `types` of its last
    argument get what it calculates."""

    class Fused(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, *given: Any) -> Any:
            query, key, value, mask, causal, watch = given
            batch, heads, rows, _ = query.shape
            made = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
            sums = query.new_empty(batch, heads, rows, dtype=torch.float32)
            context.save_for_backward(query, key, value, mask, made, sums)
            context.rest = (causal, watch)
            note(query, key, value, causal, watch, False)
            return made

        @staticmethod
        def backward(context: Any, _gradient: Any) -> Any:
            tensors = context.saved_tensors[:4]
            (query, key, value, _), (causal, watch) = tensors, context.rest
            note(query, key, value, causal, watch, True)
            asked = zip(tensors, context.needs_input_grad, strict=False)
            return (
                *(torch.empty_like(each) if needs else None for each, needs in asked),
                None,
                None,
            )

    def note(query: Any, key: Any, value: Any, causal: bool, watch: Any, backward: bool) -> None:
        sizes, widths = (*query.shape[:-1], key.shape[-2]), (query.shape[-1], value.shape[-1])
        watch.flops += cudnn.attention(sizes, *widths, causal, backward)
        watch.types.add(str(query.dtype)[6:])

    return Fused


def is_fused(
    capability: tuple[int, ...], kind: str, told: dict[str, Any], ways: dict[str, bool]
) -> bool:
    """Tell whether a GPU has a fused attention for arguments, which keeps no products
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `can_use_flash_attention` and
    `can_use_mem_efficient_attention`). ways: those that the program allows."""
    query, key, value = (told[name] for name in ("query", "key", "value"))
    size, half = query.shape[-1], kind in ("float16", "bfloat16")
    modern = capability >= (8, 0)
    if query.dim() != 4 or size != key.shape[-1]:
        return False
    square = not told["is_causal"] or query.shape[-2] == key.shape[-2]
    grouped = query.shape[1] != key.shape[1]  # fewer heads of keys
    plain = told["attn_mask"] is None and square and size == value.shape[-1] <= 256
    if ways["flash"] and modern and half and plain:
        return True
    types = ("float32", "float16", "bfloat16") if modern else ("float32", "float16")
    multiple = 8 if half else 4 if modern else 1
    aligned = size % multiple == 0 and value.shape[-1] % multiple == 0
    return ways["mem_efficient"] and kind in types and aligned and not grouped
