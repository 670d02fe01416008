"""The trainer learns from real pictures in a minute, through the records tool and the command."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
pytest.importorskip("tensorflow")

from trainer.records import command  # noqa: E402


def folders(images: np.ndarray, labels: list[str], out: Path) -> Path:
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = out / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return out


def learned(pictures: Path, tmp_path: Path, task, *options: object) -> tuple[float, int, float]:
    """Accuracy on held-out pictures, their number, and seconds."""
    made = tmp_path / "records"
    tool = [str(pictures), str(made), "--encoding", "png", "--validation", "0.25"]
    assert command.main(tool) == 0
    held_out = json.loads((made / "dataset.json").read_text())["splits"]["validation"]["records"]
    began = time.monotonic()
    code, lines = task("--records", made, "--job-dir", tmp_path / "job", *options)
    assert code == 0, lines[-1]
    evaluated = [line for line in lines if line["event"] == "evaluated"][-1]
    assert evaluated["examples"] == held_out
    return evaluated["accuracy"], held_out, time.monotonic() - began


def test_photographs_of_faces_and_others(tmp_path: Path, task) -> None:
    data = pytest.importorskip("skimage.data").lfw_subset()
    images = np.round(data * 255).astype(np.uint8)
    labels = ["face"] * 100 + ["other"] * 100  # As skimage.data.lfw_subset says.
    pictures = folders(images, labels, tmp_path / "pictures")
    options = ("--image-size", 24, "--steps", 400, "--steps-per-loop", 50)
    augmented = ("--flip", "horizontal", "--crop", 0.8, "--color-jitter", "0.2,0.2,0")
    accuracy, held_out, seconds = learned(pictures, tmp_path, task, *options, *augmented)
    assert accuracy >= 0.95, f"lfw_subset: {accuracy:.4f} of {held_out}, {seconds:.0f} s"
