"""Handwritten digits with JAX: data-parallel, resumable, and safe to stop.

It keeps to the contract (docs/proof.md). In a cluster it reads the coordinator's variables, which
the image sets from those of the service; it talks over NCCL where there are GPUs, else over gloo.
"""

import argparse
import io
import json
import os
import pathlib
import re
import signal
import struct
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image

RESTART = 143
"""The exit code of a program that saved its work and wants to be started again."""
LABEL = re.compile(rb"image/class/label\x12\x05\x1a\x03\x0a\x01(.)", re.DOTALL)
"""The label in a tf.train.Example: a message of one small number."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=pathlib.Path, required=True)
    parser.add_argument("--job-dir", type=pathlib.Path, default="job")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", "--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    return parser.parse_args()


def cluster() -> tuple[int, int]:
    """Join the cluster, if there is one; return this process's rank and the number of all."""
    count = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    rank = int(os.environ.get("JAX_PROCESS_ID", "0"))
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(num_processes=count, process_id=rank)
    return rank, count


def read(folder: pathlib.Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures and the labels of a split's TFRecords."""
    pictures, labels = [], []
    for path in sorted(folder.glob(f"{split}-*.tfrecord")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            example = content[at + 12 : at + 12 + size]
            picture = Image.open(io.BytesIO(example[example.index(b"\x89PNG") :]))
            pictures.append(np.asarray(picture.convert("L"), np.float32) / 255)
            labels.append(LABEL.search(example)[1][0])
            at += size + 16
    if not pictures:
        sys.exit(f"{folder}: no {split}-*.tfrecord")
    return np.stack(pictures)[:, None], np.array(labels, np.int32)


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal
    net = {"filters": draw(0, 0.5, (32, 1, 3, 3)), "last": draw(0, 0.06, (512, 10))}
    return {name: value.astype(np.float32) for name, value in net.items()}


def network(net, pictures):
    maps = lax.conv(pictures, net["filters"], (1, 1), "SAME")
    pooled = jax.nn.relu(maps).reshape(-1, 32, 4, 2, 4, 2).max((3, 5))
    return pooled.reshape(-1, 512) @ net["last"]


def cross_entropy(net, pictures, labels):
    chances = jax.nn.log_softmax(network(net, pictures))
    return -jnp.mean(jnp.take_along_axis(chances, labels[:, None], axis=1))


def train(net, pictures, labels, stops):
    """Take one step of gradient descent, and count the processes that have to stop."""
    loss, slopes = jax.value_and_grad(cross_entropy)(net, pictures, labels)
    return jax.tree.map(lambda old, slope: old - 0.1 * slope, net, slopes), loss, stops.sum()


def write(path: pathlib.Path, save) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    with new.open("wb") as file:
        save(file)
    new.replace(path)


def main() -> None:
    chosen, stopped = options(), []
    rank, world = cluster()
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    mesh = Mesh(jax.devices(), "batch")
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("batch",), ()))
    take_step = jax.jit(train, out_shardings=whole)
    pictures, labels = read(chosen.records, "train")
    net, step = weights(), 0
    checkpoint = chosen.job_dir / "checkpoints" / "newest.npz"

    def say(event: str, **values: float) -> None:
        if rank == 0:
            print(json.dumps({"event": event, "step": step, **values}), flush=True)

    if checkpoint.exists():
        saved = np.load(checkpoint)
        step, net = int(saved["step"]), {name: saved[name] for name in net}
        say("resumed")
    while step < chosen.steps:
        mine = np.random.default_rng(step).integers(len(labels), size=chosen.batch)[rank::world]
        stops = np.full(len(mine), len(stopped), np.int32)
        batch = jax.make_array_from_process_local_data(split, (pictures[mine], labels[mine], stops))
        net, loss, stop = take_step(net, *batch)
        step += 1
        if step % 10 == 0 or stop:
            say("step", loss=float(loss))
        if stop or step % chosen.checkpoint_every == 0 or step == chosen.steps:
            if rank == 0:
                write(checkpoint, partial(np.savez, step=step, **net))
            say("checkpoint")
        if stop:
            os._exit(RESTART)
    if rank == 0:
        net = {name: np.asarray(value) for name, value in net.items()}
        held_out, truth = read(chosen.records, "validation")
        right = jnp.mean(network(net, held_out).argmax(1) == truth)
        say("evaluated", loss=float(cross_entropy(net, held_out, truth)), accuracy=float(right))
        answer = export.export(jax.jit(partial(network, net)), platforms=("cpu", "cuda", "tpu"))
        program = answer(held_out[:1]).serialize()
        write(chosen.job_dir / "model" / "model.jax", lambda file: file.write(program))


if __name__ == "__main__":
    try:
        main()
    except jax.errors.JaxRuntimeError as error:
        if not re.search("gloo|coordination|nccl", str(error), re.IGNORECASE):
            raise
        print(f"another process has ended: {error}", file=sys.stderr, flush=True)
        os._exit(RESTART)
