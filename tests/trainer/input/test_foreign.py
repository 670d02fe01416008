"""Records that other tools wrote: each message says what is there and which option reads it."""

import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.trainer.runs import Task
from trainer import evaluate
from trainer.config import UsageError
from trainer.input import splits
from trainer.input.parts import Layout
from trainer.records.tfrecord import Value, example, frame

pytestmark = pytest.mark.tensorflow


def jpeg(colour: int) -> bytes:
    """A picture of one colour."""
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), colour, np.uint8)).save(out, "JPEG")
    return out.getvalue()


PICTURES = [jpeg(250), jpeg(20)]


def written(folder: Path, *, packed: bool = False, label: Value | None = None) -> Path:
    """64 bright and dark pictures, as TensorFlow Datasets name them; classes 1 and 2."""
    folder.mkdir()
    for split in ("train", "validation"):
        records = (
            example({"image": PICTURES[n % 2], "label": n % 2 + 1 if label is None else label})
            for n in range(64)
        )
        content = b"".join(map(frame, records))
        path = folder / f"lamps-{split}.tfrecord-00000-of-00001"
        path.write_bytes(gzip.compress(content) if packed else content)
    (folder / "labels.txt").write_text("bright\ndark\n")
    return folder


def test_following_the_messages_leads_to_a_model(task: Task, tmp_path: Path) -> None:
    """Compressed, with features of other names, and labels from 1."""
    given = ["--records", written(tmp_path / "lamps", packed=True), "--job-dir", tmp_path / "job"]
    given += ["--steps", 60, "--batch-size", 16, "--export", "none"]
    added: list[str] = []
    for _ in range(4):
        code, lines = task(*given, *added)
        if code == 0:
            break
        found = re.findall(r"--(?:compression|feature-\w+|first-label) \S+\b", lines[-1]["message"])
        added += " ".join(found).split()
    assert added == [
        *("--compression", "gzip", "--feature-image", "image", "--feature-label", "label"),
        *("--first-label", "1"),
    ]
    assert code == 0
    [result] = [line for line in lines if line["event"] == "evaluated"]
    assert (result["examples"], result["accuracy"]) == (64, 1.0)
    assert evaluate.main(["--job-dir", str(tmp_path / "job"), "--split", "validation"]) == 0


def test_labels_count_from_the_first_one(tmp_path: Path) -> None:
    layout = Layout(image="image", label="label", first=1)
    shards = splits.find(str(written(tmp_path / "lamps")), "train", layout)
    assert np.concatenate([*splits.labels(shards, 2).values()]).tolist() == [0, 1] * 32


@pytest.mark.parametrize(
    ("label", "told"),
    [(b"bright", "label holds text"), ((1, 2), "label has 2 numbers"), ((), "label is empty")],
)
def test_a_label_that_is_none_is_told(tmp_path: Path, label: Value, told: str) -> None:
    folder = str(written(tmp_path / "lamps", label=label))
    with pytest.raises(UsageError, match=f"lamps-train.*: {told}"):
        splits.find(folder, "train", Layout(image="image", label="label"))


def test_floats_are_values(tmp_path: Path) -> None:
    folder = str(written(tmp_path / "lamps", label=(0.5, 1.5)))
    shards = splits.find(folder, "train", Layout(image="image", label="label"))
    assert shards[0].layout.target == "values"
    assert splits.labels(shards, 2)[shards[0].path][0].tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("cut", "told"),
    [(slice(None, -9), "is not whole"), (slice(2, None), "is not compressed with GZIP")],
)
def test_a_file_that_cannot_be_unpacked_is_named(tmp_path: Path, cut: slice, told: str) -> None:
    folder = written(tmp_path / "lamps", packed=True)
    for path in folder.glob("lamps-train*"):
        path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(UsageError, match=f"lamps-train.tfrecord-00000-of-00001: .*{told}"):
        splits.find(str(folder), "train", Layout(compression="gzip"))
