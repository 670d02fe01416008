"""The steps of others' programs with JAX: `python of_jax.py PROGRAM '{"batch": 64}'`.

A batch lies on all devices, the weights on each.
"""

# mypy: ignore-errors
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training_image_compile import take

WIDTHS = ((256, 1024), (1024, 256))
TO_HOST = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["x"],
    offload_src="device",
    offload_dst="pinned_host",
)


class Block(nn.Module):
    """A bottleneck of ResNet-50."""

    width: int
    stride: int
    kind: str

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.kind)
        norm = functools.partial(nn.BatchNorm, use_running_average=False, dtype=self.kind)
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), (self.stride, self.stride))(y)))
        y = norm()(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.width, (1, 1), (self.stride, self.stride))(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """ResNet-50, as flax's example has it."""

    kind: str

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (7, 7), (2, 2), use_bias=False, dtype=self.kind)(x.astype(self.kind))
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=self.kind)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for number in range(blocks):
                x = Block(64 * 2**stage, 2 if stage and not number else 1, self.kind)(x)
        return nn.Dense(1000, dtype=self.kind)(x.mean((1, 2)))


class Layer(nn.Module):
    """A layer of ViT-S/16."""

    @nn.compact
    def __call__(self, x):
        x += nn.MultiHeadDotProductAttention(6)(nn.LayerNorm()(x))
        return x + nn.Dense(384)(nn.gelu(nn.Dense(1536)(nn.LayerNorm()(x))))


class ViT(nn.Module):
    """ViT-S/16, as big_vision has it."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(384, (16, 16), (16, 16), "VALID")(x).reshape(len(x), 196, 384)
        x += self.param("places", nn.initializers.zeros, (1, 196, 384))
        for _ in range(12):
            x = Layer()(x)
        x = jnp.tanh(nn.Dense(384)(nn.LayerNorm()(x).mean(1)))
        return nn.Dense(1000)(x)


def train(model, optimizer, batch, kind="float32"):
    """Name the step."""
    shape = jax.ShapeDtypeStruct
    pictures, labels = shape((batch, 224, 224, 3), kind), shape((batch,), "int32")
    variables = jax.eval_shape(model.init, jax.random.key(0), pictures)
    weights, rest = variables["params"], {k: v for k, v in variables.items() if k != "params"}
    state = jax.eval_shape(optimizer.init, weights)

    def step(weights, rest, state, pictures, labels):
        def loss_of(weights):
            logits, new = model.apply({"params": weights, **rest}, pictures, mutable=list(rest))
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype("float32"), labels
            )
            return losses.mean(), new

        (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), new, state, loss

    mesh = Mesh(np.array(jax.devices()), ("batch",))
    each, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("batch",)))
    places = (each, each, each, split, split)
    jitted = jax.jit(step, in_shardings=places, donate_argnums=(0, 1, 2))
    take(jitted, [weights, rest, state, pictures, labels])


def resnet50(batch, half="float32"):
    """Train with momentum."""
    train(ResNet50(half), optax.sgd(0.1, momentum=0.9, nesterov=True), batch, half)


def vit_s16(batch):
    """Train with Adam, whose momentum is bfloat16."""
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, mu_dtype="bfloat16"))
    train(ViT(), chain, batch)


def two_layers(offload=""):
    """Ten times two products, by JAX's page about memory on the host."""
    first, second = (jax.ShapeDtypeStruct((10, *each), "float32") for each in WIDTHS)

    def layer(x, weights):
        x = checkpoint_name(x, "x") if offload else x
        return x @ weights[0] @ weights[1], None

    def loss(weights, x):
        once = jax.remat(layer, policy=TO_HOST, prevent_cse=False) if offload else layer
        return jax.lax.scan(once, x, weights)[0].sum()

    take(jax.jit(jax.grad(loss)), [(first, second), jax.ShapeDtypeStruct((256, 256), "float32")])


def adam(size):
    """Four products and their GELU, by the same page: the square of weights that it asks for."""
    square = jax.ShapeDtypeStruct((size, size), "float32")
    weights = {f"w{number}": square for number in range(1, 5)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))

    def loss(weights, x):
        y = x
        for weight in weights.values():
            y @= weight
            y = 0.5 * y * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (y + 0.044715 * y**3)))
        squares = sum((weight**2).sum() for weight in weights.values())
        return ((y - x) ** 2).mean() + 0.001 * squares

    def step(weights, state, x):
        updates, state = optimizer.update(jax.grad(loss)(weights, x), state, weights)
        return optax.apply_updates(weights, updates), state

    state = jax.eval_shape(optimizer.init, weights)
    take(jax.jit(step, donate_argnums=(0, 1)), [weights, state, square])


globals()[sys.argv[1]](**json.loads(sys.argv[2]))
