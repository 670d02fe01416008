"""Programs with JAX that cannot run where they are sent: each with what has to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN = """
import sys
import jax, jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

def step(w, x):
    return w - 0.1 * jax.grad(lambda w: loss(w, x))(w)

def train(w, x, function=None):
    function = function or jax.jit(step)
    for _ in range(3):
        w = function(w, x)
    w.block_until_ready()

"""
TOO_LARGE = """
def loss(w, x):
    return jnp.sin(jnp.sin(x.T @ x) @ w).sum()
from training_image_compile import take
take(jax.jit(step), (Shape((131072, 8), "float32"), Shape((48, 131072), "float32")))
"""
_WEIGHTS = """
def loss(w, x):
    return (x @ w).sum()
from training_image_compile import take
take(jax.jit(step), (Shape((65536, 65536), "float32"), Shape((48, 65536), "float32")))
"""
_BATCH = """
def loss(w, x):
    return (x @ w).sum()
mesh = Mesh(jax.devices(), "batch")
rows = jax.device_put(jnp.ones((6, 256)), NamedSharding(mesh, PartitionSpec("batch")))
train(jnp.ones((256, 256)), rows)
"""
_MAPPED = """
rows = {"in_specs": PartitionSpec("batch"), "out_specs": PartitionSpec("batch")}
def loss(w, x):
    double = jax.shard_map(lambda x: x * 2, mesh=Mesh(jax.devices(), "batch"), **rows)
    return (double(x) @ w).sum()
train(jnp.ones((256, 256)), jnp.ones((6, 256)))
"""
_MESH = """
def loss(w, x):
    return (x @ w).sum()
mesh = jax.make_mesh((8,), ("batch",))
train(jnp.ones((256, 256)), jnp.ones((48, 256)))
"""
_SCRATCH = """
def kernel(x, o, scratch):
    o[...] = x[...] * 2
@jax.jit
def step(w, x):
    return pl.pallas_call(
        kernel,
        out_shape=Shape(w.shape, w.dtype),
        scratch_shapes=[pltpu.VMEM((204800, 128), jnp.float32)],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=110 * 2**20),
    )(w)
train(jnp.ones((8, 128)), None, step)
"""


def _product(preset: str) -> str:
    return f"""
def loss(w, x):
    preset = lax.DotAlgorithmPreset.{preset}
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), precision=preset).sum()
train(jnp.ones((256, 256)), jnp.ones((48, 256)))
"""


def _of(expression: str) -> str:
    return f"""
def step(w, x):
    return {expression}
train(jnp.ones((16, 16)), None)
"""


def _kernel(body: str, kind: str = "float32", spec: str = "") -> str:
    return f"""
jax.config.update("jax_enable_x64", {kind == "float64"})
def kernel(x, o):
    o[...] = {body}
@jax.jit
def step(w, x):
    return pl.pallas_call(kernel, out_shape=Shape((256, 256), "{kind}"), {spec})(w)
train(jnp.ones((256, 256), "{kind}"), None, step)
"""


def _multiplied(kind: str, out: str) -> str:
    body = f"jnp.dot(x[...], x[...], preferred_element_type='{out}').astype('{kind}')"
    return _kernel(body, kind)


_ATTENTION = """
def loss(w, x):
    heads = x.reshape(48, 64, 4, 64)
    return jax.nn.dot_product_attention(heads * w, heads, heads, implementation="cudnn").sum()
train(jnp.ones((), "float16"), jnp.ones((48, 64 * 4 * 64), "float16"))
"""

_BLOCK = "pl.BlockSpec((16, 16), lambda i, j: (i, j))"
_BLOCKS = f"grid=(16, 16), in_specs=[{_BLOCK}], out_specs={_BLOCK}"

V5E, V4, V7X = ("TPU-v5e", "v5e:2x2"), ("TPU-v4", "v4:2x2x1"), ("TPU7x", "tpu7x:2x2x1")
V100, T4, A100, H100 = ("V100", ""), ("T4", ""), ("A100-40GB", ""), ("H100", "")


@dataclass(frozen=True)
class Broken:
    """A program, where it is refused, and what the refusal says."""

    name: str
    on: tuple[str, str]
    """The device, and the topology of a TPU."""
    program: str
    says: str
    """A regular expression."""
    works: tuple[str, str] | None = None
    """Where the same program compiles and fits."""


_ENDS = r"on the devices of .* the program ends: .*"
TABLE = (
    Broken("activations", V5E, TOO_LARGE, r"not fit TPU-v5e 2x2: HLO temp.* of 15.75GiB"),
    Broken("weights", V5E, _WEIGHTS, r"not fit TPU-v5e 2x2: HLO temp.* need 32.*GiB", V7X),
    Broken("batch", V5E, _BATCH, _ENDS + r"divi.*train.py:\d+", ("TPU-v5e", "v5e:1x1")),
    Broken("shard_map", V5E, _MAPPED, _ENDS + r"evenly divisible", ("TPU-v5e", "v5e:1x1")),
    Broken("mesh", V5E, _MESH, _ENDS + r"Number of devices 4 .*train.py:\d+", V7X),
    Broken(
        "eig", V5E, _of("jnp.linalg.eig(w)[0].real + w"), r"primitive 'eig' not found for .* tpu"
    ),
    Broken(
        "schur", V5E, _of("jax.scipy.linalg.schur(w)[0]"), r"'schur' not found for platform tpu"
    ),
    Broken("hessenberg", V5E, _of("jax.scipy.linalg.hessenberg(w)"), r"'hessenberg' not found"),
    Broken(
        "foreign", V5E, _of("jax.ffi.ffi_call('mine', w)(w)"), r"train.py:\d+: .*mine not found"
    ),
    Broken("tf32", V5E, _product("TF32_TF32_F32"), r"UNIMPL.*ALG_DOT_TF32_TF32_F32"),
    Broken("float16", V5E, _product("F16_F16_F32"), r"UNIMPL.*ALG_DOT_F16_F16_F32"),
    Broken(
        "blocks", V5E, _kernel("x[...] * 2", spec=_BLOCKS), r"divisible by 8 and 128.*train.py:\d+"
    ),
    Broken("sort", V5E, _kernel("jnp.sort(x[...])"), r"Unimplemented primitive .* sort"),
    Broken("float64", V5E, _kernel("x[...] * 2", "float64"), r"train.py:\d+: UNIMPL.*f64"),
    Broken("half", V5E, _multiplied("float16", "float32"), r"Mosaic failed to compile"),
    Broken("int8", V4, _multiplied("int8", "int32"), r"Unsupported matmul .* type on target", V7X),
    Broken("vmem-v4", V4, _SCRATCH, r"RESOURCE_EXHAUSTED: .*exceed memory \(size=16777216\)", V5E),
    Broken("vmem-7x", V7X, _SCRATCH, r"RESOURCE_EXHAUSTED: .*exceed memory \(size=67108864\)"),
    Broken("activations", V100, TOO_LARGE, r"not fit V100: it needs .* a program gets 11.8"),
    Broken("weights", T4, _WEIGHTS, r"not fit T4: it needs 32.0 of 14.8 GiB", H100),
    Broken("mesh", V100, _MESH, _ENDS + r"Number of devices 1 .*train.py:\d+"),
    Broken(
        "bfloat16", V100, _product("BF16_BF16_F32"), r"train.py:\d+: .*ALG_DOT_BF16_BF16_F32", H100
    ),
    Broken(
        "bfloat16", T4, _product("BF16_BF16_F32_X3"), r"train.py:\d+: .*ALG_DOT_BF16_BF16_F32_X3"
    ),
    Broken("tf32", V100, _product("TF32_TF32_F32"), r"train.py:\d+: .*ALG_DOT_TF32_TF32_F32", A100),
    Broken("tf32", T4, _product("TF32_TF32_F32"), r"train.py:\d+: .*ALG_DOT_TF32_TF32_F32"),
    Broken("attention", V100, _ATTENTION, r"fmhaSoftmax in float16, .* from 8.0 on", A100),
    Broken("schur", V100, _of("jax.scipy.linalg.schur(w)[0]"), r"'schur' not found for .* cuda"),
    Broken("hessenberg", V100, _of("jax.scipy.linalg.hessenberg(w)"), r"'hessenberg' not found"),
)
