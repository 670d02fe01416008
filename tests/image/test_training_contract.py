"""A program of one's own says where its model comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from builder.image.start import training_contract
from builder.pipeline import model

PROGRAM = """\
from pathlib import Path
from training_contract import Job

job = Job(suffix=".txt")
for step in job.steps():
    job.report(loss=1 / step)
    job.save(lambda path: Path(path).write_text("weights"))
(job.options.job_dir / "model").mkdir()
(job.options.job_dir / "model" / "net").write_text("network")
"""


def test_what_a_program_wrote_is_what_verify_compares(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    job, image = tmp_path / "job", "a.b/c@sha256:1"
    place = str(Path(training_contract.__file__).parent)
    command = (sys.executable, "-S", "program.py", "--job-dir", str(job), "--steps", "3")
    variables = {**os.environ, "PYTHONPATH": place, "TRAINING_IMAGE": image}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    content = json.loads((job / model.FILE).read_text())
    assert (content["image"], content["options"]["steps"]) == (image, "3")
    assert sorted(content["files"]) == ["checkpoints/step-0000000003.txt", "model/net"]
    model.compare(job, content["files"])
