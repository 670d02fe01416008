"""Programs with PyTorch that cannot run where they are sent, each with what has to be said of it;
and those that can, beside them."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN = """
import torch, triton
import triton.language as tl
from torch import nn
from training_image_compile import take

def start(kernel, kind=torch.float32, **named):
    def step(x):
        kernel[(1,)](x, torch.empty_like(x), **named)
    take(step, (torch.zeros(64, 64, dtype=kind),))

def train(function, *shape, kind=torch.float32):
    weights = nn.Parameter(torch.zeros(64, 64, dtype=kind))
    def step(x):
        function(x @ weights).float().sum().backward()
    take(step, (torch.zeros(shape or (48, 64), dtype=kind),))

def model(*layers):
    network = nn.Sequential(*layers)
    def step(x):
        network(x).sum().backward()
    return step

"""


def _kernel(body: str, kind: str = "float32", named: str = "", decorator: str = "") -> str:
    """A kernel that reads from x and writes to y."""
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return (
        f"{decorator}\n@triton.jit\ndef kernel(x, y, N: tl.constexpr = 64):\n{lines}\n"
        f"start(kernel, torch.{kind}, {named})\n"
    )


_AT = "at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]\n"
_DOT = f"{_AT}a = tl.load(x + at)\ntl.store(y + at, tl.dot(a, a).to(y.dtype.element_ty))"
_TURNED = """
at = tl.arange(0, 128)[:, None] * N + tl.arange(0, N)[None, :]
to = tl.arange(0, N)[:, None] * 128 + tl.arange(0, 128)[None, :]
tl.store(y + to, tl.trans(tl.load(x + at)))
"""
_LOOP = """
a = tl.zeros((N, N), tl.float32)
at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
for k in range(0, 64):
    a += tl.dot(tl.load(x + at + k * N * N), tl.load(y + at + k * N * N))
tl.store(y + at, a.to(y.dtype.element_ty))
"""


def _assembly(instruction: str, kind: str = "float32") -> str:
    asm = f"tl.inline_asm_elementwise('{instruction}', '=r,r', [a], tl.{kind}, True, 1)"
    body = f"a = tl.load(x + tl.arange(0, N))\ntl.store(y + tl.arange(0, N), {asm})"
    return _kernel(body, kind)


_TUNED = "@triton.autotune([triton.Config({'N': n}, num_stages=4) for n in (%s)], key=[])"
_FLOAT8 = """
@torch.compile
def scaled(x):
    y = torch.relu(x).to(torch.float8_e4m3fn)
    return y.to(torch.float32) * 2
train(scaled)
"""
_WITHIN = """
@triton.jit
def double(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.extra.cuda.gdc_wait()
    tl.store(y + at, tl.load(x + at) * 2)
@torch.compile
def doubled(x):
    y = torch.empty_like(x)
    double[(1,)](x, y, 64)
    return y
def step(x):
    doubled(torch.sin(x))
take(step, (torch.zeros(64),))
"""
_COMPILED = """
@torch.compile
def activated(x):
    return torch.nn.functional.gelu(x) * x.sigmoid()
train(activated, kind=torch.%s)
"""
_BRANCH = """
@torch.compile(fullgraph=True)
def positive(x):
    if x.sum() > 0:
        return x * 2
    return x
train(positive)
"""
_SHAPE = """
@torch.compile(fullgraph=True, dynamic=False)
def doubled(x):
    return x * 2
def step(x):
    for length in range(2, 12):
        doubled(x[:length])
take(step, (torch.zeros(64),))
"""
_ACTIVATIONS = """
take(model(*[nn.Linear(1024, 1024) for _ in range(24)]), (torch.zeros(48, 8192, 1024),))
"""
_WEIGHTS = """
class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.empty(2**20, 4096))
    def forward(self, x):
        return self.table[x]
network = Embedded()
def step(x):
    network(x).sum().backward()
take(step, (torch.zeros(48, dtype=torch.long),))
"""
_SCALED = """
def step(x):
    scale = torch.ones(())
    y = x.to(torch.float8_e4m3fn)
    torch._scaled_mm(y, y.t(), scale, scale, out_dtype=torch.bfloat16)
take(step, (torch.zeros(64, 64),))
"""
_FAKE = """
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
from torch.distributed.device_mesh import init_device_mesh
"""
_MESH = f"""{_FAKE}
mesh = init_device_mesh("cpu", (3, 2))
"""
_UNEVEN = f"""{_FAKE}
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
network = nn.Linear(6, 6)
mesh = init_device_mesh("cpu", (4,))
fully_shard(network, mesh=mesh, shard_placement_fn=lambda each: Shard(each.ndim - 1))
"""

_CONVOLUTION = """
take(model(nn.Conv2d(3, 64, 3).to(torch.{0})), (torch.zeros(48, 3, 32, 32, dtype=torch.{0}),))
"""

_ATTENTION = """
from torch.nn.attention import SDPBackend, sdpa_kernel
def attend(q):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
take(attend, (torch.zeros(8, 4, 128, 64, dtype=torch.float16, requires_grad=True),))
"""

V100, T4, A100, H100 = "V100", "T4", "A100-40GB", "H100"


@dataclass(frozen=True)
class Broken:
    """A program, where it is refused, and what the refusal says."""

    name: str
    on: str
    program: str
    says: str
    """A regular expression."""
    works: str = ""
    """Where the same program compiles and fits."""


_LINE = r"train.py:\d+: "
_FP8 = _LINE + r"type fp8e4nv not supported in this architecture"
_ENDS = r"on the devices of .* the program ends: .*"
TABLE = (
    Broken("activations", T4, _ACTIVATIONS, r"not fit T4: it needs .* of 14.8 GiB", H100),
    Broken("weights", V100, _WEIGHTS, r"not fit V100: it needs 48.0 of 15.8 GiB", H100),
    Broken(
        "shared",
        V100,
        _kernel(_TURNED, named="N=256"),
        _LINE + r"out of resource: shared memory",
        A100,
    ),
    Broken(
        "stages",
        A100,
        _kernel(_LOOP, "float16", "N=128, num_stages=4"),
        _LINE + r"out of resource: shared memory",
    ),
    Broken(
        "tuned",
        V100,
        _kernel(_TURNED, decorator=_TUNED % "256, 512"),
        _LINE + r"out of resource: shared memory",
        A100,
    ),
    Broken(
        "float8", V100, _kernel(_DOT.replace("x + at)", "x + at).to(tl.float8e4nv)")), _FP8, H100
    ),
    Broken(
        "float8", A100, _kernel(_DOT.replace("x + at)", "x + at).to(tl.float8e4nv)")), _FP8, H100
    ),
    Broken("assembly", V100, _assembly("tanh.approx.f32 $0, $1;"), _LINE + ".*sm_75", T4),
    Broken(
        "assembly",
        T4,
        _assembly("redux.sync.max.u32 $0, $1, 0xffffffff;", "int32"),
        _LINE + ".*sm_80",
        A100,
    ),
    Broken(
        "wait", A100, _kernel("tl.extra.cuda.gdc_wait()\ntl.store(y, tl.load(x))"), "sm_90", H100
    ),
    Broken("cluster", A100, _kernel(_DOT, "float16", "num_ctas=2"), _LINE + r"num_ctas > 1", H100),
    Broken("arange", H100, _kernel("tl.store(y + tl.arange(0, 48), 1.0)"), _LINE + r".*power of 2"),
    Broken("assert", H100, _kernel("tl.static_assert(N < 32, 'too wide')"), _LINE + r"too wide"),
    Broken("compiled-float8", A100, _FLOAT8, _FP8, H100),
    Broken("within", V100, _WITHIN, _LINE + ".*sm_90", H100),
    Broken("branch", H100, _BRANCH, _LINE + r"torch.compile: Data-dependent branching"),
    Broken("shape", H100, _SHAPE, r"torch.compile: .*recompile"),
    Broken("scaled_mm", A100, _SCALED, r"in float8, which cublas has from 8.9 on", H100),
    Broken("attention", V100, _ATTENTION, r"cudnn_attention in float16, .* from 8.0 on", A100),
    Broken("mesh", V100, _MESH, _ENDS + r"Mesh should not be bigger"),
    Broken("fsdp", V100, _UNEVEN, _ENDS + r"uneven sharding"),
)
WORK = (
    ("compiled", V100, _COMPILED % "float32", r"Inductor's Triton kernels compile \(4\)"),
    ("compiled", V100, _COMPILED % "float16", r"Inductor's Triton kernels compile \(4\)"),
    ("compiled", V100, _COMPILED % "bfloat16", r"torch.compile leaves out .*: BF16 is not supp"),
    ("compiled", H100, _COMPILED % "bfloat16", r"Inductor's Triton kernels compile \(4\)"),
    ("convolution", V100, _CONVOLUTION.format("float16"), r"fits V100"),
    ("convolution", V100, _CONVOLUTION.format("bfloat16"), r"no convolution in bfloat16 there"),
    ("dot", V100, _kernel(_DOT, "float16"), r"its own Triton kernels compile \(1\)"),
    ("dot", V100, _kernel(_DOT, "bfloat16"), r"its own Triton kernels compile \(1\)"),
    (
        "tuned",
        V100,
        _kernel(_TURNED, decorator=_TUNED % "32, 512"),
        r"its own Triton kernels compile \(1\)",
    ),
)
