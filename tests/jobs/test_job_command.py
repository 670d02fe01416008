"""`builder job` on the command line: exit codes, one line of what is wrong, one of the way out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core import project
from builder.jobs import images as service
from builder.jobs.ready import JobImage
from tests.clock import replace_pauses
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.conftest import Run
from tests.jobs.test_convert import POST

ROOT = project.find_root(Path(__file__).parent)


def test_render_writes_what_is_sent_to_stdout(run: Run, here: Path) -> None:
    code, out, err = run("job", "render", "cats", "--project", "my-project")
    assert code == 0
    assert json.loads(out)["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorCount"] == 2
    assert "note: v100 is a tag" in err
    code, out, _ = run("job", "render", "cats", "-o", "job.json")
    assert (code, out) == (0, "")
    assert "workerPoolSpecs" in (here / "job.json").read_text()
    (here / "builder.toml").write_text("")
    code, out, err = run("job", "render", "cats")
    assert code == 0 and "builder image v100 --push" in err
    uri = f"training:{project.tag_of(here, 'v100')}"
    assert f'"imageUri": "{uri}"' in out and uri.endswith("-v100")


@pytest.mark.parametrize(
    ("words", "code", "problem", "fix"),
    [
        (("render", "dogs"), 2, "no job is called 'dogs'", "cats"),
        (("render", "cats", "--region", "europe-west1"), 2, "europe-west1 has no V100", "west4"),
        (("convert", "config.yaml"), 2, "config.yaml: No such file", "file"),
        (("cost", "cats", "--for", "soon"), 2, "--for: 'soon'", "22m"),
        (("status", "cats"), 2, "no project is known", "--project"),
        (("status", "cats", "--on", "here"), 2, "--on here: no backend", "local, vertex"),
        (("list",), 2, "no project is known", "--project"),
        (("why", "dogs"), 2, "dogs has not run on this machine", "--project"),
    ],
)
def test_what_is_wrong_is_one_line_and_the_way_out_another(
    run: Run, words: tuple[str, ...], code: int, problem: str, fix: str
) -> None:
    exit_code, out, err = run("job", *words)
    assert (exit_code, out) == (code, "")
    error, way_out = err.splitlines()[-2:]
    assert error.startswith("error: ") and problem in error
    assert way_out.startswith("fix:") and fix in way_out


def test_convert_writes_a_job_that_renders_and_schema_what_check_asks_for(
    run: Run, here: Path
) -> None:
    (here / "jobs/schema.json").write_text("{}")
    assert "jobs/schema.json: not today's schema" in run("--quiet", "check")[1]
    assert any("jobs/schema.json" in line for line in json.loads(run("check", "--json")[1]))
    assert run("job", "schema")[0] == 0
    assert "jobs/schema.json" not in run("check")[1]
    (here / "config.yaml").write_text(POST)
    output = ("--region", "us-central1", "-o", "jobs/my_post.yaml")
    code, _, err = run("job", "convert", "config.yaml", *output, "--", "--epochs", "10")
    assert code == 0 and "v100 is for V100" in err
    assert run("job", "render", "my_post")[0] == 0
    words = ("gcloud", "x", "--config", "config.yaml", "--colour", "red", "--", "--epochs", "3")
    code, out, err = run("job", "convert", "--", *words)
    assert code == 0 and "--epochs" in out and "not taken over: --colour: not known" in err


def test_cost_of_a_job(run: Run) -> None:
    code, out, err = run("job", "cost", "cats", "--for", "22m", "--json")
    assert code == 0 and "total" in err
    answer = json.loads(out)
    usd = 1.15 * 22 / 60 * (0.38 + 2 * 2.48)
    assert answer["usd"] == pytest.approx(usd, abs=1e-4) and answer["complete"]


# --- against the loopback service -----------------------------------------------------------------


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Loopback]:
    with emulator.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        pushed = JobImage(
            f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}", jobfiles.DIGEST, "v100", "V100", True
        )
        monkeypatch.setattr(service, "pushed_image", lambda *_: (pushed, ()))
        yield server


def test_submit_to_the_end_with_logs(run: Run, loopback: emulator.Loopback, here: Path) -> None:
    code, out, err = run("job", "submit", "cats", "--logs", "--poll", "0.05", "--json")
    assert code == 0
    assert json.loads(out)["state"] == "succeeded"
    assert "chief-0" in err and "step 1" in err
    code, _, err = run("job", "submit", "cats")
    assert code == 0 and "it succeeded before; --again" in err
    assert len(loopback.service.jobs) == 1
    code, out, _ = run("job", "list", "--json")
    assert code == 0 and [job["state"] for job in json.loads(out)] == ["succeeded"]
    code, _, err = run("job", "status", "cats")
    assert code == 0 and "console.cloud.google.com" in err and jobfiles.DIGEST not in err
    code, _, err = run("job", "logs", "cats", "--replica", "chief-0")
    assert code == 0 and "done" in err


def test_ctrl_c_ends_the_watching_and_cancel_the_job(
    run: Run, loopback: emulator.Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    loopback.service.faults.stay_queued = True
    assert run("job", "submit", "cats")[0] == 0
    with monkeypatch.context() as interrupted:
        replace_pauses(interrupted, lambda _: signal.raise_signal(signal.SIGINT))
        code, _, err = run("job", "logs", "cats", "--follow")
    assert code == 130 and "goes on: builder job logs" in err
    (job,) = loopback.service.jobs.values()
    assert job.state.name == "JOB_STATE_QUEUED"
    code, _, err = run("job", "cancel", "cats")
    assert code == 0 and "cancelled" in err
    assert run("job", "logs", "cats", "--follow", "--poll", "0.05")[0] == 143
    code, _, err = run("job", "cancel", "cats")
    assert code == 0 and "it has cancelled already" in err


def test_watch_a_study_there_by_its_trials(run: Run, loopback: emulator.Loopback) -> None:
    loopback.service.executor = emulator.Script(metric=lambda given: float(given["rate"]))
    assert run("job", "submit", "tuned", "--logs", "--poll", "0.05")[0] == 0
    code, _, page = run("job", "status", "tuned", "--watch")
    assert code == 0 and "trial 1  succeeded: 0." in page


def test_why_a_job_there_ended(run: Run, loopback: emulator.Loopback) -> None:
    line = "OOM when allocating tensor with shape[64]"
    loopback.service.executor = emulator.Script((("workerpool0-0", line),), code=1)
    assert run("job", "submit", "cats", "--logs", "--poll", "0.05")[0] == 1
    code, out, err = run("job", "why", "cats", "--json")
    diagnosis = json.loads(out)
    assert (code, diagnosis["ending"]) == (0, "device-memory")
    assert diagnosis["evidence"][0]["text"] == line
    assert diagnosis["evidence"][0]["where"].startswith("chief-0, ")
    loopback.service.faults.bursts = [("/v2/entries:list", 403, 10)]
    code, out, err = run("job", "why", "cats", "--json")
    assert (code, json.loads(out)["known"]) == (0, False)
    assert "note: its log cannot be read: logs: not allowed" in err


def test_what_ran_here_is_asked_here(run: Run, loopback: emulator.Loopback, here: Path) -> None:
    assert run("job", "submit", "cats", "--logs", "--poll", "0.05")[0] == 0
    jobfiles.ran(here / "build/jobs/cats", "failed", name="cats of here")
    code, out, _ = run("job", "status", "cats", "--watch", "--json")
    assert (code, json.loads(out)["display_name"]) == (1, "cats of here")
    there = json.loads(run("job", "status", "cats", "--on", "vertex", "--json")[1])
    assert there["state"] == "succeeded"


def test_help_is_quick_and_imports_nothing_slow() -> None:
    slow = "google.cloud.aiplatform_v1, grpc, pydantic, yaml, docker"
    script = (
        "import sys; from builder.cli.group import app; "
        f"found = [n for n in '{slow}'.split(', ') if n in sys.modules]; print(found)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert out.stdout.strip() == "[]"
