"""`builder job` on the command line: exit codes, one line of what is wrong, one of the way out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from builder.core import project
from builder.jobs import images as service
from builder.jobs.ready import JobImage
from tests import ROOT
from tests.clock import replace_pauses, until
from tests.conftest import Run
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.test_convert import POST
from tests.shown import shown


def test_render_writes_what_is_sent_to_stdout(run: Run, here: Path) -> None:
    assert shown(run("job", "render", "cats", "--project", "my-project")) == snapshot("""\
{
  "displayName": "cats-1e74c70c5711",
  "labels": {
    "builder-key": "1e74c70c5711",
    "builder-job": "cats",
    "builder-run": "1"
  },
  "jobSpec": {
    "workerPoolSpecs": [
      {
        "machineSpec": {
          "machineType": "n1-standard-8",
          "acceleratorType": "NVIDIA_TESLA_V100",
          "acceleratorCount": 2
        },
        "replicaCount": 1,
        "containerSpec": {
          "imageUri": "us-central1-docker.pkg.dev/p-1/t/i:v100",
          "args": [
            "--steps=100",
            "--batch-size=32"
          ],
          "env": [
            {
              "name": "TRAINING_ACCELERATOR",
              "value": "V100:2,capability=7.0,cuda=12,driver=525"
            }
          ]
        }
      }
    ],
    "scheduling": {
      "timeout": "604800s",
      "strategy": "STANDARD"
    },
    "baseOutputDirectory": {
      "outputUriPrefix": "gs://my-bucket/jobs/cats-1e74c70c5711"
    }
  }
}
| note: v100 is a tag: `builder job submit` sends what the registry holds
""")
    assert shown(run("job", "render", "cats", "-o", "job.json")) == snapshot("""\
| note: v100 is a tag: `builder job submit` sends what the registry holds
| wrote job.json
""")
    assert "workerPoolSpecs" in (here / "job.json").read_text()
    (here / "builder.toml").write_text("")
    code, out, err = run("job", "render", "cats")
    assert code == 0 and "builder image v100 --push" in err
    uri = f"training:{project.tag_of(here, 'v100')}"
    assert f'"imageUri": "{uri}"' in out and uri.endswith("-v100")


def test_what_is_wrong_is_one_line_and_the_way_out_another(run: Run) -> None:
    ask = lambda *words: shown(run("job", *words))  # noqa: E731
    assert ask("render", "dogs") == snapshot("""\
| error: no job is called 'dogs': there is no jobs/dogs.yaml
| fix:   known: cats, tuned
exit code 2
""")
    assert ask("render", "cats", "--region", "europe-west1") == snapshot("""\
| error: jobs/cats.yaml:2: region: europe-west1 has no V100 for training
| fix:   write region: europe-west4; training has V100 in asia-east1, europe-west4,
| .. us-central1, us-east1, us-west1
exit code 2
""")
    assert ask("convert", "config.yaml") == snapshot("""\
| error: config.yaml: No such file or directory
| fix:   make it a file that can be read
exit code 2
""")
    assert ask("cost", "cats", "--for", "soon") == snapshot("""\
| error: --for: 'soon' is not a length of time
| fix:   write a number and s, m, h or d, such as 2h or 22m
exit code 2
""")
    assert ask("status", "cats") == snapshot("""\
| error: cats has not run on this machine, and Vertex AI cannot be asked: no project
| .. is known
| fix:   builder job local cats; or give --project, add project: to the job, or set
| .. it in the table [job] of builder.toml
exit code 2
""")
    assert ask("status", "cats", "--on", "here") == snapshot("""\
| error: --on here: no backend has this name
| fix:   write one of local, vertex, kubernetes
exit code 2
""")
    assert ask("list") == snapshot("""\
| error: no project is known
| fix:   give --project, add project: to the job, or set it in the table [job] of
| .. builder.toml
exit code 2
""")
    assert ask("why", "dogs") == snapshot("""\
| error: dogs has not run on this machine, and Vertex AI cannot be asked: no project
| .. is known
| fix:   builder job local dogs; or give --project, add project: to the job, or set
| .. it in the table [job] of builder.toml
exit code 2
""")


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
    words = ["gcloud", "ml-engine", "jobs", "--config", "config.yaml", "--colour", "red"]
    code, out, err = run("job", "convert", "--", *words, "--", "--epochs", "3")
    assert code == 0 and "--epochs" in out and "not taken over: --colour: not known" in err
    (here / "python-job.yaml").write_text(POST)  # a file, although a program is called so
    code, _, err = run("job", "convert", "--", "docker", "run", "--gpus", "all", "a/b")
    assert code == 2 and "docker: no job is written so" in err
    code, out, _ = run("job", "convert", "python-job.yaml", *output[:2])
    assert code == 0 and "machine: n1-standard-8" in out


def test_cost_of_a_job(run: Run) -> None:
    assert shown(run("job", "cost", "cats", "--for", "22m")) == snapshot("""\
| cats: 22 min (the time given)
|   chief: 1 x n1-standard-8     0.3667 h        x      0.38 =     0.1393
|   chief: 1 x 2 x V100          0.7333 h        x      2.48 =     1.8187
|   the fee of Vertex AI          1.958 USD      x      0.15 =     0.2937
|   total                     USD 2.2517
|   on spot machines          USD 1.0943
| prices: Compute Engine's prices by zone in SkyPilot's catalog, v9/gcp/vms.csv at
| .. commit 2c3d7ea7 (read 2026-11-22)
| prices: the fee of Vertex AI: its page's 0.21849885 for an hour of n1-standard-4,
| .. over 0.19 in the catalog (read 2026-11-22)
""")
    answer = json.loads(run("job", "cost", "cats", "--for", "22m", "--json")[1])
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


NAMES = {r"(cats|tuned)-[0-9a-z-]+": r"\1-RUN", r"\b\d{12,}\b": "NUMBER"}
"""Of jobs, which their key and the service give them."""
WHERE = {r"(?m)^\|   projects.*\n\|   https.*\n\|   1 x .*\n\|   writes to .*": "|   WHERE"}
"""Where a job is and what it has, once it was shown."""


def test_submit_to_the_end_with_logs(run: Run, loopback: emulator.Loopback) -> None:
    ask = lambda *words: shown(run("job", *words), NAMES)  # noqa: E731
    assert ask("submit", "cats", "--logs", "--poll", "0.05") == snapshot("""\
| note: its step on 2 x V100: not asked: no receipt of the image is at hand; builder
| .. job cost cats compiles it
|   = submit cats  N s
| chief-0 | step 1
| chief-0 | done
| cats-RUN: succeeded, N s
|   projects/NUMBER/locations/us-central1/customJobs/NUMBER
|   https://console.cloud.google.com/vertex-ai/locations/us-central1/training/NUMBER?project=NUMBER
|   1 x chief: n1-standard-8 with 2 x NVIDIA_TESLA_V100
|   writes to gs://my-bucket/jobs/cats-RUN
""")
    ask = lambda *words: shown(run("job", *words), {**NAMES, **WHERE})  # noqa: E731
    assert ask("submit", "cats") == snapshot("""\
| note: its step on 2 x V100: not asked: no receipt of the image is at hand; builder
| .. job cost cats compiles it
|   = submit cats  cached
| cats-RUN: it succeeded before; --again runs it a second time
| cats-RUN: succeeded, N s
|   WHERE
""")
    assert len(loopback.service.jobs) == 1
    assert ask("list") == snapshot("| TIME  NUMBER  cats-RUN: succeeded, N s\n")
    assert ask("status", "cats") == snapshot("""\
| cats-RUN: succeeded, N s
|   WHERE
""")
    assert ask("logs", "cats", "--replica", "chief-0") == snapshot("""\
| chief-0 | step 1
| chief-0 | done
""")


def test_ctrl_c_ends_the_watching_and_cancel_the_job(
    run: Run, loopback: emulator.Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = lambda *words: shown(run("job", *words), {**NAMES, **WHERE})  # noqa: E731
    loopback.service.faults.stay_queued = True
    assert ask("submit", "cats") == snapshot("""\
| note: its step on 2 x V100: not asked: no receipt of the image is at hand; builder
| .. job cost cats compiles it
|   = submit cats  N s
| cats-RUN: queued
|   WHERE
""")
    with monkeypatch.context() as interrupted:
        replace_pauses(interrupted, lambda _: signal.raise_signal(signal.SIGINT))
        assert ask("logs", "cats", "--follow") == snapshot("""\
| cats-RUN goes on: builder job logs NUMBER --on vertex --follow, or cancel NUMBER
| .. --on vertex
exit code 130
""")
    (job,) = loopback.service.jobs.values()
    assert job.state.name == "JOB_STATE_QUEUED"
    assert ask("cancel", "cats") == snapshot("""\
| cats-RUN: cancelled
|   WHERE
""")
    assert ask("logs", "cats", "--follow", "--poll", "0.05") == snapshot("""\
| cats-RUN: cancelled
|   WHERE
exit code 143
""")
    assert ask("cancel", "cats") == snapshot("""\
| cats-RUN: it has cancelled already
| cats-RUN: cancelled
|   WHERE
""")


def test_watch_a_study_there_by_its_trials(run: Run, loopback: emulator.Loopback) -> None:
    loopback.service.executor = emulator.Script(metric=lambda given: float(given["rate"]))
    assert run("job", "submit", "tuned", "--logs", "--poll", "0.05")[0] == 0
    rates = {**NAMES, r"(rate=|d\)?: )0\.\d+": r"\g<1>0.N"}
    assert shown(run("job", "status", "tuned", "--watch"), rates) == snapshot("""\
| tuned-RUN  succeeded  0:00:00
| replica  state                step  loss  examples/s  left  restarts
| trial 1  succeeded: 0.N
| trial 2  succeeded: 0.N
| trial 1 | step 1
| trial 1 | done
| trial 2 | step 1
| trial 2 | done
| tuned-RUN: succeeded, N s
|   projects/NUMBER/locations/us-central1/hyperparameterTuningJobs/NUMBER
|   https://console.cloud.google.com/vertex-ai/locations/us-central1/hyperparameter-tuning-jobs/NUMBER?project=NUMBER
|   1 x chief: n1-standard-8 with 2 x NVIDIA_TESLA_V100
|   writes to gs://my-bucket/jobs/tuned-RUN
|   trial 1 (succeeded): 0.N  rate=0.N
|   trial 2 (succeeded): 0.N  rate=0.N
""")


@pytest.mark.parametrize(("minutes", "said"), [(0, "GPU 93 %"), (11, "GPU: not told")])
def test_status_shows_what_a_step_there_said_of_its_gpus(
    minutes: int, said: str, run: Run, loopback: emulator.Loopback
) -> None:
    """Among the newest lines, and of the last minutes alone."""
    event = {"event": "step", "step": 3, "message": "step 3", "gpu_percent": 93.0}
    end, faults = threading.Event(), loopback.service.faults
    faults.age = timedelta(minutes=minutes)
    lines = [("workerpool0-0", json.dumps(event)), *[("workerpool0-0", "and so on")] * 60]
    loopback.service.executor = emulator.Script(tuple(lines), wait=end)
    assert run("job", "submit", "cats")[0] == 0
    try:
        until(lambda: len(loopback.service.entries) > 60)
        code, out, err = run("job", "status", "cats", "--json")
        (row,) = json.loads(out)["replicas"]
        assert code == 0 and f"  chief-0: running, {said}, 0 restarts" in err
        assert (row["gpus"], row["gpu_percent"]) == (2, None if minutes else 93.0)
    finally:
        end.set()


def test_why_a_job_there_ended(run: Run, loopback: emulator.Loopback) -> None:
    ask = lambda *words: shown(run("job", *words), NAMES)  # noqa: E731
    line = "OOM when allocating tensor with shape[64]"
    loopback.service.executor = emulator.Script((("workerpool0-0", line),), code=1)
    assert run("job", "submit", "cats", "--logs", "--poll", "0.05")[0] == 1
    why = json.loads(run("job", "why", "cats", "--json")[1])
    said, left = why["evidence"]
    assert (why["ending"], why["certainty"]) == ("device-memory", "certain")
    assert said["where"].startswith("chief-0, ") and said["text"] == line
    assert left == {"where": "what the job left", "text": "exit code 1"}
    loopback.service.faults.bursts = [("/v2/entries:list", 403, 10)]
    assert ask("why", "cats") == snapshot("""\
| cats-RUN: unknown
| The job failed. Why is not known: no line is in the table of known endings.
|   what the job left: exit code 1
|   what Vertex AI says: The replica workerpool0-0 exited with a non-zero status of
| .. 1. To find out more about why your job exited please check the logs.
| To do: Read the lines before this one. Add a common cause to
| .. builder/jobs/why/endings.yaml.
| note: its log cannot be read: logs: not allowed: The service is currently
| .. unavailable.
""")


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
