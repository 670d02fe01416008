"""Files that no person would write on purpose: refused with file, line and fix, never a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.test_job_command import Run, here, run  # noqa: F401

HEAD = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: V100\n"
HOSTILE = {
    "an anchor that contains itself": HEAD + "labels: &a {b: *a}\n",
    "a thousand lists in each other": HEAD + "arguments: " + "[" * 1000 + "]" * 1000 + "\n",
    "twenty thousand values": HEAD + "arguments: [" + "a, " * 30_000 + "]\n",
    "a quote that never ends": HEAD + "arguments: ['a]\n",
    "a tag of Python": HEAD + "labels: !!python/object:os.system {a: b}\n",
    "a key that is a list": HEAD + "? [a, b]\n: c\n",
    "a merge key": HEAD + "<<: {image: cpu}\n",
    "a zero byte": HEAD + "\x00",
    "a lone surrogate": HEAD + 'arguments: ["\\ud800"]\n',
    "nothing": "",
    "an image of a shell": HEAD.replace("image: v100", "image: $(reboot)"),
    "a name that leads up": HEAD + "name: ../cats\n",
    "a million years": HEAD + "scheduling: {timeout: 365000000d}\n",
    "a range of no number": HEAD + "study: {metric: a, parameters: {x: {min: 0, max: nan}}}\n",
    "a key nearly right": HEAD + "enviroment: {A: b}\n",
}


def test_a_hostile_job_is_refused_at_once(run: Run, here: Path) -> None:  # noqa: F811
    for what, text in HOSTILE.items():
        (here / "jobs" / "bad.yaml").write_text(text)
        code, out, err = run("job", "render", "bad")
        assert (code, out) == (2, ""), (what, err)
        assert re.search(r"jobs/bad\.yaml(:[0-9]+)?: ", err), (what, err)
        assert "fault" not in err and "fix: " in err, (what, err)


@pytest.mark.parametrize("what", ["an anchor that contains itself", "a zero byte", "nothing"])
def test_a_hostile_job_of_ai_platform_is_refused(run: Run, here: Path, what: str) -> None:  # noqa: F811
    (here / "bad.yaml").write_text(HOSTILE[what].replace(HEAD, "trainingInput: {}\n"))
    code, out, err = run("job", "convert", "bad.yaml")
    assert (code, out) == (2, "") and re.search(r"bad\.yaml(:[0-9]+)?: ", err), err
