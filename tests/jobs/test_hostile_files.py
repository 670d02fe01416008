"""Files that no person would write on purpose: each is refused, with file, line and fix.

They go through the command itself: exit code 2, and never "a fault of the factory".
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.test_job_command import Run, here, run  # noqa: F401

HEAD = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: V100\n"
STUDY = "study:\n  metric: accuracy\n  parameters:\n    rate: {min: 0.1, max: 0.9}\n"

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SYNTAX = {
    "an alias bomb": BOMB,
    "an alias bomb of mappings": BOMB.replace("[x,", "[{x: y},"),
    "an anchor that contains itself": HEAD + "labels: &a {b: *a}\n",
    "an alias without an anchor": HEAD + "labels: *nobody\n",
    "a thousand lists in each other": HEAD + "arguments: " + "[" * 1000 + "]" * 1000 + "\n",
    "a thousand mappings in each other": HEAD + "labels: " + "{a: " * 1000 + "}" * 1000 + "\n",
    "a list that never ends": HEAD + "arguments: [a, b\n",
    "a mapping that never ends": HEAD + "labels: {a: b\n",
    "a quote that never ends": HEAD + "arguments: ['a]\n",
    "a tab before a key": HEAD + "labels:\n\ta: b\n",
    "a tab between key and value": HEAD + "labels: {a:\tb}\n\t\n  x: y\n",
    "two documents": HEAD + "---\n" + HEAD,
    "a directive of another version": "%YAML 9.9\n---\n" + HEAD,
    "a tag of Python": HEAD + "labels: !!python/object:os.system {a: b}\n",
    "a tag nobody knows": HEAD + "labels: !mine {a: b}\n",
    "a key that is a list": HEAD + "? [a, b]\n: c\n",
    "a key that is a mapping": HEAD + "? {a: b}\n: c\n",
    "a key twice": HEAD + "image: cpu\n",
    "a merge key": HEAD + "<<: {image: cpu}\n",
    "a control character": HEAD + "labels: {a: b\x01}\n",
    "a zero byte": HEAD + "\x00",
    "a lone surrogate": HEAD + 'arguments: ["\\ud800"]\n',
    "a bell in an argument": HEAD + 'arguments: ["\\a"]\n',
    "an indent that goes astray": HEAD + "labels:\n    a: b\n  c: d\n",
    "a block that is no text": HEAD + "labels: |\n  a: b\n",
    "a list at the top": "- image: v100\n",
    "a word at the top": "v100\n",
    "nothing": "",
    "a comment alone": "# nothing\n",
    "null": "null\n",
    "JSON that is cut off": '{"image": "v100", ',
    "twenty thousand values": HEAD + "arguments: [" + "a, " * 30_000 + "]\n",
    "two megabytes": HEAD + "# " + "x" * 2_000_000 + "\n",
}
VALUES = {
    "no image": HEAD.replace("image: v100\n", ""),
    "an empty image": HEAD.replace("v100", ""),
    "an image that is a list": HEAD.replace("image: v100", "image: [v100]"),
    "an image of a shell": HEAD.replace("image: v100", "image: $(reboot)"),
    "an image with a space": HEAD.replace("image: v100", "image: v 100"),
    "a name beyond 63 characters": HEAD + f"name: {'n' * 64}\n",
    "a name of capitals": HEAD + "name: CATS\n",
    "a name that leads up": HEAD + "name: ../cats\n",
    "a project of signs": HEAD + "project: '***'\n",
    "a zone as a region": HEAD.replace("us-central1", "us-central1-a"),
    "a region nobody has": HEAD.replace("us-central1", "mars-north1"),
    "an unknown region on a CPU": ("image: cpu\nmachine: n1-standard-8\nregion: moon-central1\n"),
    "no machine": "image: v100\n",
    "a machine nobody has": HEAD.replace("n1-standard-8", "z9-standard-8"),
    "a machine of digits": HEAD.replace("n1-standard-8", "8"),
    "accelerators in words": HEAD.replace("V100", "two V100"),
    "no accelerators in number": HEAD.replace("V100", "0 x V100"),
    "more accelerators than there are": HEAD.replace("V100", "99999999999999999999 x V100"),
    "three V100": HEAD.replace("V100", "3 x V100"),
    "an accelerator nobody has": HEAD.replace("V100", "V1000"),
    "a topology of a GPU": HEAD + "topology: 2x2\n",
    "a preset and machines": HEAD + "preset: BASIC\n",
    "a preset nobody had": "image: cpu\npreset: LARGE\n",
    "minus one worker": HEAD + "replicas: {workers: -1}\n",
    "half a worker": HEAD + "replicas: {workers: 1.5}\n",
    "a million workers": HEAD + "replicas: {workers: 1000000}\n",
    "a role nobody plays": HEAD + "replicas: {masters: 1}\n",
    "a reducer without workers": HEAD + "replicas: {reduction_servers: {image: a/b}}\n",
    "a worker whose image is no text": HEAD + "replicas: {workers: {image: {a: b}}}\n",
    "arguments with dashes": HEAD + "arguments: {--steps: 1}\n",
    "arguments in arguments": HEAD + "arguments: {steps: [1, 2]}\n",
    "arguments beyond the service's": HEAD + f"arguments: ['{'x' * 100_001}']\n",
    "a number as arguments": HEAD + "arguments: 3\n",
    "a command of names": HEAD + "command: {a: b}\n",
    "a variable of the service": HEAD + "environment: {TF_CONFIG: '{}'}\n",
    "a variable with a dash": HEAD + "environment: {A-B: c}\n",
    "101 variables": HEAD + "environment: {" + ", ".join(f"A{n}: b" for n in range(101)) + "}\n",
    "a folder on another cloud": HEAD + "job_dir: s3://bucket/x\n",
    "a bucket of capitals": HEAD + "job_dir: gs://BUCKET/x\n",
    "a folder with a star": HEAD + "job_dir: gs://bucket/*\n",
    "a word nobody replaces": HEAD + "job_dir: gs://bucket/{run}\n",
    "an account without a host": HEAD + "service_account: me\n",
    "a disk of one gigabyte": HEAD + "disk: {size_gb: 1}\n",
    "a disk of a type nobody has": HEAD + "disk: {type: floppy}\n",
    "no time at all": HEAD + "scheduling: {timeout: 0s}\n",
    "a million years": HEAD + "scheduling: {timeout: 365000000d}\n",
    "a time of words": HEAD + "scheduling: {timeout: soon}\n",
    "a strategy of hope": HEAD + "scheduling: {strategy: hope}\n",
    "waiting without flex-start": HEAD + "scheduling: {max_wait: 2h}\n",
    "a label of the factory's": HEAD + "labels: {builder-key: abc}\n",
    "a label of capitals": HEAD + "labels: {Team: vision}\n",
    "61 labels": HEAD + "labels: {" + ", ".join(f"a{n}: b" for n in range(61)) + "}\n",
    "a study of nothing": HEAD + "study: {metric: accuracy, parameters: {}}\n",
    "a metric with a space": HEAD + STUDY.replace("accuracy", "my accuracy"),
    "a range of one value": HEAD + STUDY.replace("max: 0.9", "max: 0.1"),
    "a range of no number": HEAD + STUDY.replace("0.9", "nan"),
    "a range without an end": HEAD + STUDY.replace("0.9", "1e999"),
    "an argument that the study varies": HEAD + "arguments: [--rate=1]\n" + STUDY,
    "an argument of a worker that the study varies": (
        HEAD + "replicas: {workers: {arguments: {rate: 1}}}\n" + STUDY
    ),
    "a key nobody knows": HEAD + "colour: red\n",
    "a key nearly right": HEAD + "enviroment: {A: b}\n",
}


@pytest.mark.parametrize("text", [*SYNTAX.values(), *VALUES.values()], ids=[*SYNTAX, *VALUES])
def test_a_hostile_file_is_refused_at_once(
    run: Run,  # noqa: F811
    here: Path,  # noqa: F811
    text: str,
) -> None:
    (here / "jobs" / "bad.yaml").write_text(text)
    code, out, err = run("job", "render", "bad")
    assert code == 2, err
    assert out == ""
    assert re.search(r"jobs/bad\.yaml(:[0-9]+)?: ", err), err
    assert "fault" not in err and "Traceback" not in err
    assert re.search(r"(^|\n) +(fix|->)|-> ", err) or "\n" in err.strip(), err


@pytest.mark.parametrize("command", ["import", "convert"])
@pytest.mark.parametrize("text", SYNTAX.values(), ids=SYNTAX)
def test_a_hostile_file_of_elsewhere_is_refused(
    run: Run,  # noqa: F811
    here: Path,  # noqa: F811
    command: str,
    text: str,
) -> None:
    """The same in a job that is to be imported or converted."""
    inside = text.replace(HEAD, "trainingInput: {}\nworkerPoolSpecs: []\nkind: JobSet\n")
    (here / "bad.yaml").write_text(inside)
    code, out, err = run("job", command, "bad.yaml")
    assert (code, out) == (2, ""), err
    assert re.search(r"bad\.yaml(:[0-9]+)?: ", err), err
    assert "fault" not in err and "Traceback" not in err


def test_there_are_eighty() -> None:
    assert len(SYNTAX) + len(VALUES) >= 80
