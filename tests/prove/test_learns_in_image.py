"""It learns from real pictures in the training image, as `builder job run` starts it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builder.engine import Engine
from builder.jobs.backends.local import run as local
from builder.jobs.backends.local.replicas import LocalJob

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.tensorflow]

ROOT = Path(__file__).resolve().parents[2]


def test_the_image_learns_to_tell_what_it_was_not_shown(
    engine: Engine, cpu_image: str, tmp_path: Path
) -> None:
    from sklearn.datasets import load_digits  # slow to import, and collected in every run

    digits = load_digits()
    pictures = np.round(digits.images * 255 / 16).astype(np.uint8)
    options = "--image-size=8 --steps=400 --schedule=cosine --learning-rate=0.005 --crop=0.7"
    for number, (pixels, label) in enumerate(zip(pictures, digits.target, strict=True)):
        path = tmp_path / "pictures" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    records = [sys.executable, "-m", "trainer.records", tmp_path / "pictures", tmp_path / "records"]
    subprocess.run([*records, "--encoding", "png", "--validation", "0.25"], cwd=ROOT, check=True)
    splits = json.loads((tmp_path / "records/dataset.json").read_text())["splits"]
    events: list[Any] = []
    job = LocalJob(
        "learns",
        cpu_image,
        tmp_path / "job",
        arguments=(*options.split(), "--steps-per-loop=50"),
        records=tmp_path / "records",
        pass_job_dir=True,
        shm=1 << 28,
    )
    outcome = local.run(engine, job, on_line=events.append)
    last = [str(getattr(event, "text", event)) for event in events][-5:]
    assert outcome.exit_code == 0, "\n".join(last)
    evaluation = json.loads((tmp_path / "job/summary.json").read_text())["evaluation"]
    assert evaluation["examples"] == splits["validation"]["records"]
    assert evaluation["accuracy"] >= 0.97, evaluation
