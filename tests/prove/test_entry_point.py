"""What an image starts is followed through its layers: what is wrong with it, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from builder.prove.checks import entry_point
from builder.prove.receipts import Defect, Finding
from tests.prove.reading import SITE, Files, layer, read

PATH = "PATH=/opt/venv/bin:/usr/bin:/bin"
BASE: Files = {
    "usr/bin/python3.11": (b"\x7fELF", 0o755, 0),
    "bin/sh": (b"\x7fELF", 0o755, 0),
    "bin/bash": (b"\x7fELF", 0o755, 0),
    "usr/bin/env": (b"\x7fELF", 0o755, 0),
    "usr/bin/tini": (b"\x7fELF", 0o755, 0),
    "usr/bin/uv": (b"\x7fELF", 0o755, 0),
    "opt/venv/bin/torchrun": (b"#!/opt/venv/bin/python\nimport torch\n", 0o755, 0),
    "opt/venv/bin/pip": (b"#!/opt/venv/bin/python\nimport pip\n", 0o755, 0),
    "app/train.py": (b"import torch\n", 0o644, 0),
    "app/jobs/__main__.py": (b"", 0o644, 0),
    "app/jobs/one.py": (b"", 0o644, 0),
    "app/entry.sh": (b'#!/bin/bash\nset -e\nexec "$@"\n', 0o755, 0),
    f"{SITE}/pip/__main__.py": (b"", 0o644, 0),
    f"{SITE}/acme/cli.py": (b"", 0o644, 0),
    "etc/passwd": (b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n", 0o644, 0),
    "etc/group": (b"root:x:0:\nstaff:x:50:app\n", 0o644, 0),
}
LINKS = {"opt/venv/bin/python": "/usr/bin/python3.11", "usr/bin/python3": "python3.11"}


def said(files: Files, config: dict[str, Any]) -> list[Defect]:
    given = {"Env": [PATH], "WorkingDir": "/app", "User": "1000", **config}
    defects, _ = entry_point.run(read(layer({**BASE, **files}, LINKS), **given))
    return list(defects)


def script(text: str, mode: int = 0o755, owner: int = 0) -> Files:
    return {"app/entry.sh": (text.encode(), mode, owner)}


def shell(text: str) -> dict[str, Any]:
    return {"Cmd": ["/bin/sh", "-c", text]}


MPI: Files = {"usr/bin/mpirun": (b"\x7fELF", 0o755, 0)}
BY_SCRIPT = {"Entrypoint": ["/app/entry.sh"], "Cmd": ["python", "train.py"]}
IN_ROOT: Files = {
    "root/": (b"", 0o700, 0),
    "root/venv/bin/python": (b"\x7fELF", 0o755, 0),
}
BROKEN: list[tuple[Files, dict[str, Any], str]] = [
    # the first line
    (script("#!/bin/bash\r\n"), BY_SCRIPT, "line ends of Windows: the kernel looks for"),
    (script("#!/usr/bin/env bash\r\n"), BY_SCRIPT, "line ends of Windows"),
    (script("#!/usr/local/bin/bash\n"), BY_SCRIPT, "starts with /usr/local/bin/bash, which is not"),
    (script("#!/usr/bin/env zsh\n"), BY_SCRIPT, "is run by zsh, which is not there in PATH"),
    (script("set -e\nexec python\n"), BY_SCRIPT, "has no first line"),
    (script("\ufeff#!/bin/sh\n"), BY_SCRIPT, "has no first line"),
    (script("#!/bin/sh\n", 0o644), BY_SCRIPT, "/app/entry.sh may not be executed"),
    (
        {"opt/venv/bin/torchrun": (b"#!/build/venv/bin/python\n", 0o755, 0)},
        {"Cmd": ["torchrun", "train.py"]},
        "starts with /build/venv/bin/python, which is not there",
    ),
    # what an interpreter runs
    ({}, {"Cmd": ["python", "trian.py"]}, "python runs /app/trian.py, which is not there"),
    ({}, {"Cmd": ["python", "train.py"], "WorkingDir": "/src"}, "not there; /app/train.py is"),
    ({}, {"Cmd": ["python", "-u", "-W", "ignore", "/train.py"]}, "python runs /train.py, which is"),
    ({}, {"Cmd": ["python", "-m", "job"]}, "runs the module job, which is not in /app"),
    ({}, {"Cmd": ["python", "-um", "acme.client"]}, "runs the module acme.client, which is not"),
    ({}, {"Cmd": ["python", "-m", "acme"]}, "runs the module acme, which is not"),
    ({}, {"Cmd": ["python", "/opt/venv/lib"]}, "is a folder without __main__.py"),
    ({}, {"Cmd": ["bash", "/run.sh"]}, "bash runs /run.sh, which is not there"),
    ({}, {"Cmd": ["torchrun", "--nproc_per_node", "2", "fit.py"]}, "torchrun runs /app/fit.py"),
    (MPI, {"Cmd": ["mpirun", "-np", "2", "python", "fit.py"]}, "python runs /app/fit.py, which is"),
    ({}, {"Cmd": ["mpirun", "-np", "2", "python", "train.py"]}, "the image starts mpirun, which"),
    # shells and wrappers
    ({}, shell("python trian.py --steps $STEPS"), "python runs /app/trian.py, which is not there"),
    ({}, shell("cd /srv && exec python train.py"), "python runs /srv/train.py, which is not there"),
    ({}, shell("A=1 pyhton train.py"), "the image starts pyhton, which is not there in PATH"),
    ({}, {"Cmd": ["bash", "-lc", "set -x; python -m job | tee log"]}, "runs the module job"),
    ({}, {"Entrypoint": ["tini", "--", "python", "no.py"]}, "python runs /app/no.py, which is not"),
    ({}, {"Entrypoint": ["env", "A=1", "pyhton"]}, "the image starts pyhton, which is not there"),
    ({}, {**BY_SCRIPT, "Cmd": ["python", "no.py"]}, "python runs /app/no.py, which is not there"),
    (script("#!/bin/sh\nexec python /fit.py\n"), BY_SCRIPT, "python runs /fit.py, which is not"),
    ({}, shell('["python" "train.py"]'), "Docker takes a list for a shell's line that is no JSON"),
    ({}, shell("['python', 'train.py']"), "Docker takes a list for a shell's line"),
    ({}, shell('[python, "train.py"]'), "Docker takes a list for a shell's line"),
    ({}, {"Cmd": ["python train.py"]}, "the image starts python train.py, which is not there"),
    # rights
    (IN_ROOT, {"Cmd": ["/root/venv/bin/python"]}, "user 1000 may not enter /root, on the way to"),
    (IN_ROOT, {"Cmd": ["/root/venv/bin/python"], "User": "app"}, "user 1000 may not enter /root"),
    ({"app/": (b"", 0o750, 0)}, {"Cmd": ["python", "train.py"]}, "user 1000 may not enter /app"),
    ({"app/train.py": (b"", 0o600, 0)}, {"Cmd": ["python", "train.py"]}, "may not read /app/train"),
    (script("#!/bin/sh\n", 0o744), BY_SCRIPT, "user 1000 may not execute /app/entry.sh"),
    ({}, {"Cmd": ["python"], "User": "trainer"}, "no account trainer in /etc/passwd"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "config", "message"), BROKEN)
def test_what_does_not_start_is_refused_with_its_cause(
    files: Files, config: dict[str, Any], message: str
) -> None:
    (defect,) = said(files, config)
    assert type(defect) is Defect and message in defect.message
    assert defect.fix


ELSEWHERE: dict[str, Any] = {"Cmd": ["python", "-m", "jobs.one"], "WorkingDir": "/"}
SOUND: list[tuple[Files, dict[str, Any]]] = [
    ({}, {"Cmd": ["python", "train.py", "--steps", "2"]}),
    ({}, {"Cmd": ["python", "jobs"]}),
    ({}, {"Cmd": ["python", "-m", "jobs"]}),
    ({}, {"Cmd": ["python", "-u", "-m", "jobs.one"]}),
    ({}, {"Cmd": ["python", "-m", "acme.cli"]}),
    ({}, {"Cmd": ["python", "-m", "http.server"]}),
    ({}, {**ELSEWHERE, "Env": [PATH, "PYTHONPATH=/app"]}),
    ({f"{SITE}/own.pth": (b"/app\n", 0o644, 0)}, ELSEWHERE),
    ({}, {"Cmd": ["python", "-c", "import torch"]}),
    ({}, {"Cmd": ["python"]}),
    ({}, BY_SCRIPT),
    (script("#!/usr/bin/env -S bash -e\nexec python train.py\n"), BY_SCRIPT),
    (script("#!/bin/sh\nif [ -n \"$X\" ]; then\n  exec 3>&1\nfi\nexec $RUN\n"), BY_SCRIPT),
    ({}, shell("if [ -f x ]; then no; fi")),
    ({}, shell("test -f x || no-program")),
    ({}, shell("nvidia-smi || true")),
    ({}, shell("python $SCRIPT")),
    ({}, shell("$PYTHON no.py")),
    ({}, shell("cd jobs && python one.py > log 2>&1")),
    ({}, shell("python train.py 'and it'\"'s\" quoted; echo done")),
    ({}, {"Cmd": ["bash", "-c", "source /opt/venv/bin/activate && python train.py"]}),
    ({}, {"Entrypoint": ["tini", "-g", "--", "/app/entry.sh"], "Cmd": ["python", "train.py"]}),
    ({}, {"Cmd": ["torchrun", "--standalone", "--nproc_per_node=2", "train.py"]}),
    (MPI, {"Cmd": ["mpirun", "-x", "PATH", "python", "train.py"]}),
    (MPI, {"Cmd": ["mpirun", "-np", "2", "./fit"]}),
    ({}, {"Cmd": ["python", "/data/train.py"], "Volumes": {"/data": {}}}),
    ({}, {"Cmd": ["python", "train.py"], "User": "app:staff"}),
    (IN_ROOT, {"Cmd": ["/root/venv/bin/python"], "User": ""}),
    (IN_ROOT, {"Cmd": ["/root/venv/bin/python"], "User": "root"}),
    ({"app/": (b"", 0o750, 1000)}, {"Cmd": ["python", "train.py"]}),
    ({"app/": (b"", 0o710, 50)}, {"Cmd": ["python", "train.py"], "User": "1000"}),
    ({}, {"Cmd": ["bash", "-euo", "pipefail", "-c", "python train.py"]}),
    ({}, {"Cmd": ["bash", "--rcfile", "/x", "-i"]}),
    ({}, {"Cmd": ["bash", "-s", "--", "name"]}),
    ({}, shell("run() { python no.py; }; run")),
    ({}, shell("time python train.py # and wait")),
    ({}, shell("FOO=$(date) python train.py")),
    ({}, shell("python $(pwd)/no.py")),
    ({"app/own.zip": (b"PK", 0o644, 0)}, {**ELSEWHERE, "Env": [PATH, "PYTHONPATH=/app/own.zip"]}),
    ({f"{SITE}/easy-install.pth": (b"./own.egg\n", 0o644, 0),
      f"{SITE}/own.egg/jobs/one.py": (b"", 0o644, 0)}, ELSEWHERE),
    ({}, {"Cmd": ["uv", "run", "--no-sync", "python", "train.py"]}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "config"), SOUND)
def test_what_starts_passes_and_what_is_not_known_too(files: Files, config: dict[str, Any]) -> None:
    assert said(files, config) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"Cmd": ["uv", "run", "train.py"]}, "`uv run` compares the environment with the lock"),
        (shell("pip install -r requirements.txt && python train.py"), "installs at each start"),
        (shell("python -m pip install x && python train.py"), "installs at each start"),
    ],
)
def test_what_installs_at_each_start_is_a_finding(config: dict[str, Any], message: str) -> None:
    (finding,) = said({}, config)
    assert isinstance(finding, Finding) and message in finding.message
