"""The example of docs/your-program.md, as it stands there: what it prints, writes and survives."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from builder import contract
from builder.cli.group import app
from builder.config import image_yaml
from builder.contract import TrainerEvent
from builder.image.start import training_contract
from builder.init import proposal as init
from builder.prove import judge
from builder.prove.judge import Run

PAGE = Path(__file__).parents[1] / "docs/your-program.md"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the page's program, and nothing else."""
    write(tmp_path)
    return tmp_path


def write(repository: Path) -> None:
    """Write the page's program."""
    match = re.search(r"^`digits/train\.py`.*?:\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)
    assert match
    (repository / "digits").mkdir()
    (repository / "digits/__init__.py").touch()
    (repository / "digits/train.py").write_text(textwrap.dedent(match[1]))
    shown = CliRunner().invoke(app, ["show", "contract"])
    (repository / "digits/training_contract.py").write_text(shown.stdout)


def run(repository: Path, job: str, steps: int, stop: str = "", **variables: str) -> Run:
    """Run the program as the proof does, and stop it once it went on behind a checkpoint."""
    command = [sys.executable, "-m", "digits.train", "--records=x", f"--job-dir={job}"]
    options = [f"--steps={steps}", "--batch=16", "--checkpoint-every=40"]
    events: list[TrainerEvent] = []
    began, sent = time.monotonic(), False
    with subprocess.Popen(
        [*command, *options],
        cwd=repository,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            event = contract.event(contract.fields(line))
            assert event, line
            events.append(event)
            if stop and not sent and judge.behind_a_checkpoint(events):
                sent = True
                (process.kill if stop == "SIGKILL" else process.terminate)()
    seconds = time.monotonic() - began
    return Run(process.returncode % 256, seconds, tuple(events), stopped=sent)


def test_the_program_of_the_page_survives_a_kill_and_learns(repository: Path) -> None:
    first = run(repository, "job", 400, "SIGKILL")
    assert judge.judge_first(first, 400) is None
    second = run(repository, "job", 400)
    assert judge.judge_second(first, second, 400) == []


def test_on_sigterm_it_saves_the_step_that_it_reported(repository: Path) -> None:
    stopped = run(repository, "job", 100_000, "SIGTERM")
    assert stopped.exit_code == 143
    assert stopped.last_checkpoint == stopped.last_step > 40


def test_what_is_no_number_ends_the_program_and_the_newest_two_checkpoints_stay(
    repository: Path,
) -> None:
    program = repository / "digits/train.py"
    text = program.read_text()
    program.write_text(text.replace("loss = (", "loss = float('nan') if job.step == 250 else ("))
    ended = run(repository, "job", 400)
    assert ended.exit_code == contract.NOT_FINITE == training_contract.NOT_FINITE
    assert math.isnan(ended.events[-1].loss or 0)
    kept = sorted(path.name for path in (repository / "job/checkpoints").iterdir())
    assert kept == ["step-0000000200", "step-0000000240"]
    program.write_text(text)
    words = [event.name for event in run(repository, "job", 400).events]
    assert (words[0], words[-1]) == (contract.RESUMED, "done")
    assert contract.RESTART == training_contract.RESTART
    assert str(training_contract._folder("gs://bucket/a/b")) == "/gcs/bucket/a/b"


@pytest.mark.parametrize(
    ("suffix", "variable", "first", "other"),
    [
        (".pt", "RANK", "0", "1"),  # PyTorch
        (".npz", "JAX_PROCESS_ID", "0", "3"),
        (".weights.h5", "TF_CONFIG", '{"cluster": {"worker": []}, "task": {"type": "worker"}}',
         '{"cluster": {"worker": [], "chief": []}, "task": {"type": "worker", "index": 0}}'),
    ],
)  # fmt: skip
def test_in_a_cluster_the_first_process_alone_reports_and_writes(
    repository: Path, suffix: str, variable: str, first: str, other: str
) -> None:
    """What the others write together with it goes nowhere."""
    program = repository / "digits/train.py"
    text = program.read_text().replace("Job()", f'Job(suffix="{suffix}")')
    program.write_text(text.replace("json.dumps(weight)))", "json.dumps(weight)), together=True)"))
    assert run(repository, "job", 80, **{variable: first}).events[-1].name == "done"
    names = sorted(path.name for path in (repository / "job/checkpoints").iterdir())
    assert names == [f"step-0000000040{suffix}", f"step-0000000080{suffix}"]
    silent = run(repository, "other", 80, **{variable: other})
    assert (silent.exit_code, silent.events) == (0, ())
    assert not (repository / "other").exists()


def test_init_names_it_as_the_page_says(repository: Path) -> None:
    init.write(init.propose(repository, "v100"))
    spec = image_yaml.load(repository, "v100")
    lines = (repository / "images/v100/image.yaml").read_text().splitlines()
    shown = re.findall(r"^    (program|suite): (\S+)", PAGE.read_text(), re.M)
    assert shown == [("program", str(spec.program)), ("suite", spec.suite)]
    assert {f"{key}: {value}" for key, value in shown} <= set(lines)


def test_a_step_that_is_named_is_handed_to_the_compiler_and_else_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", f"--job-dir={tmp_path}"])
    job, taken = training_contract.Job(), []
    assert job.compile(math.sqrt, 4.0) is math.sqrt
    compiler = SimpleNamespace(take=lambda *given: taken.append(given))
    monkeypatch.setitem(sys.modules, "training_image_compile", compiler)
    job.compile(math.sqrt, 4.0)
    assert taken == [(math.sqrt, (4.0,))]
