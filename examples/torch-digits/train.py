"""Handwritten digits with PyTorch: data-parallel, resumable, and safe to stop.

It keeps to the contract (docs/proof.md): its options, its lines of events and its exit codes. In a
cluster it reads torchrun's variables, which the image sets from those of the service; it talks over
NCCL where there are GPUs, else over gloo.
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

import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

RESTART = 143
"""The exit code of a program that saved its work and wants to be started again."""
LABEL = re.compile(rb"image/class/label\x12\x05\x1a\x03\x0a\x01(.)", re.DOTALL)
"""The label in a tf.train.Example: a message of one small number."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=pathlib.Path, required=True)
    parser.add_argument("--job-dir", type=pathlib.Path, default=pathlib.Path("job"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", "--batch-size", type=int, default=16)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    return parser.parse_args()


def cluster() -> tuple[int, int]:
    """Join the cluster, if there is one; return this process's rank and the number of all."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return int(os.environ.get("RANK", "0")), world


def read(folder: pathlib.Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
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
    return torch.from_numpy(np.stack(pictures))[:, None], torch.tensor(labels)


def network() -> nn.Module:
    first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def write(path: pathlib.Path, save) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    save(new)
    new.replace(path)


def main() -> None:
    chosen, stopped = options(), []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    rank, world = cluster()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures, labels = (each.to(device) for each in read(chosen.records, "train"))
    torch.manual_seed(0)
    net = network().to(device)
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    checkpoint, step = chosen.job_dir / "checkpoints" / "newest.pt", 0

    def say(event: str, **values: float) -> None:
        if rank == 0:
            print(json.dumps({"event": event, "step": step, **values}), flush=True)

    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        step = saved["step"]
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        say("resumed")

    def train(some: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(some), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiler := sys.modules.get("training_image_compile"):  # the proof asks whether it fits
        mine = slice(chosen.batch // world)
        compiler.take(train, (pictures[mine], labels[mine]))
    while step < chosen.steps:
        drawn = np.random.default_rng(step).integers(len(labels), size=chosen.batch)
        mine = torch.from_numpy(drawn[rank::world]).to(device)
        loss = train(pictures[mine], labels[mine])
        step += 1
        stop = torch.tensor(len(stopped), device=device)
        if world > 1:  # all of them stop after the same step
            distributed.all_reduce(stop)
        if step % 10 == 0 or stop:
            say("step", loss=loss.item())
        if stop or step % chosen.checkpoint_every == 0 or step == chosen.steps:
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                write(checkpoint, partial(torch.save, {"step": step, **state}))
            say("checkpoint")
        if stop:
            os._exit(RESTART)
    if rank == 0:
        net.eval().cpu()
        held_out, truth = read(chosen.records, "validation")
        with torch.no_grad():
            answers = net(held_out)
        loss = nn.functional.cross_entropy(answers, truth)
        say(
            "evaluated",
            loss=loss.item(),
            accuracy=(answers.argmax(1) == truth).float().mean().item(),
        )
        program = torch.export.export(net, (held_out[:1],))
        write(chosen.job_dir / "model" / "model.pt2", partial(torch.export.save, program))
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo" not in str(error):
            raise
        print(f"another process has ended: {error}", file=sys.stderr, flush=True)
        os._exit(RESTART)
