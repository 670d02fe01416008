"""Which files of a repository are read, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.init import proposal as init
from builder.init.findings import folded


def read(folder: Path, files: dict[str, str], target: str = "t4") -> tuple[dict[str, Any], str]:
    """The values of image.yaml, and all that is named."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    proposal = init.propose(folder, target)
    return proposal.values, "\n".join(proposal.findings.left)


TRAINER = {"trainer/__init__.py": "", "trainer/train.py": "import torch\n"}


def test_a_program_s_own_file_tells_the_release(tmp_path: Path) -> None:
    values, _ = read(tmp_path, TRAINER | {"trainer/requirements.txt": "torch==2.9.1\nrich\n"})
    assert (values["torch"], values["program"]) == ("2.9.1", "trainer:trainer.train")
    assert "requirements" not in values, "the lock takes the file itself"


@pytest.mark.parametrize("dockerfile", [{}, {"Dockerfile": "RUN pip install -r trainer/req*\n"}])
def test_of_a_program_s_own_file_that_no_lock_takes_the_rest_is_taken(
    dockerfile: dict[str, str], tmp_path: Path
) -> None:
    own = "rich\ngit+https://a.example/b\n--find-links https://a.example\njax==0.9.2\n"
    dockerfile = {
        name: text.replace("req*", "requirements.txt") for name, text in dockerfile.items()
    }
    files = (
        TRAINER | dockerfile | {"trainer/requirements.txt": own.replace("--find", "-q # --find")}
    )
    values, left = read(tmp_path, files, "t4-jax")
    assert (values["jax"], values["requirements"]) == ("0.9.2", ["rich"])
    assert "program" not in values
    assert "trainer/requirements.txt:2: git+https://a.example/b: names a URL" in left
    assert "a lock takes each line of it; mend it, and write program: trainer:trainer.train" in left


def test_files_that_lie_deeper_are_named(tmp_path: Path) -> None:
    _, left = read(
        tmp_path,
        {
            "requirements.txt": "torch\n",
            "utils/docker/Dockerfile": "FROM pytorch/pytorch:2.8.0\n",
            "utils/docker/Dockerfile-cpu": "FROM debian\n",
            "utils/docker/dockerfile_tools.py": "",
            "scripts/gpu_environment.yml": "dependencies: [jax]\n",
            "conda/env.yaml": "dependencies: [rich]\n",
            "a/b/requirements-dev.txt": "ruff\n",
            "build/x/requirements.txt": "ours\n",
            "own/pyvenv.cfg": "",
            "own/lib/requirements.txt": "ours\n",
            ".tox/requirements.txt": "ours\n",
        },
    )
    assert [line for line in left.splitlines() if "is not read there" in line] == [
        "a/b: requirements-dev.txt: is not read there: add what a job needs of it",
        "scripts: gpu_environment.yml: is not read there: add what a job needs of it",
        "utils/docker: Dockerfile, Dockerfile-cpu: is not read there: add what a job needs of it",
    ]


@pytest.mark.parametrize("key", ["resolution-markers", "markers", "marker"])
def test_of_a_lock_with_forks_the_one_for_the_image_s_python_counts(
    key: str, tmp_path: Path
) -> None:
    old, new = "python_full_version < '3.11'", "python_full_version >= '3.11' and extra != 'cpu'"
    one = "[[package]]\nname = 'numpy'\nversion = '{}'\n{} = {!r}\n"
    forks = [([m] if key == "resolution-markers" else m) for m in (old, new)]
    lock = "".join(one.format(n, key, m) for n, m in zip(("1.26.4", "2.3.0"), forks, strict=True))
    needs = "[project]\ndependencies = ['torch', 'numpy']\n"
    values, _ = read(tmp_path, {"pyproject.toml": needs, "uv.lock": lock})
    assert values["requirements"] == ["numpy==2.3.0"]


def test_files_that_install_and_are_not_read_are_named(tmp_path: Path) -> None:
    files = {
        "train.ipynb": '{"cells": [{"source": ["!pip install rich"]}]}',
        ".devcontainer/devcontainer.json": '{"postCreateCommand": "pip install rich"}',
        "pylock.gpu.toml": 'lock-version = "1.0"\n',
        "run.sh": "python train.py\n",
    }
    _, left = read(tmp_path, files | {"requirements.txt": "torch\n"})
    named = [line.partition(":")[0] for line in left.splitlines() if ": is not read: add" in line]
    assert sorted(named) == sorted({*files} - {"run.sh"})


def test_a_companion_that_ended_is_not_said_to_move_along(tmp_path: Path) -> None:
    values, left = read(
        tmp_path, {"requirements.txt": "torch==2.1.0\ntorchvision==0.16.0\ntorchtext==0.16.0\n"}
    )
    assert values["requirements"] == ["torchvision"]
    assert "torchtext==0.16.0: its last release is for PyTorch 2.3, not for 2.7.1" in left
    old, new = (
        {"requirements.txt": f"tensorflow=={r}\ntensorflow-addons\n"} for r in ("2.15.1", 2.21)
    )
    assert read(tmp_path, old, "cpu")[0]["requirements"] == ["tensorflow-addons"]
    assert "requirements" not in read(tmp_path, new, "cpu")[0]


def test_packages_of_nvidia_s_archive_are_not_debian_s(tmp_path: Path) -> None:
    names = "libcusolver-dev-12-1 libcurand-12-4 libnpp-12-4 libnvjpeg-12-4 nsight-systems-2024.1"
    debian = "libcurl4 libcups2 libnvme1"
    values, left = read(tmp_path, {"Dockerfile": f"RUN apt-get install {names} {debian}\n"}, "cpu")
    assert values["apt"] == sorted(debian.split())
    assert all(f"apt {name}" in left for name in names.split())


def test_setup_cfg_s_python_counts(tmp_path: Path) -> None:
    text = "[options]\npython_requires = >=3.12\nsetup_requires =\n    torch\n"
    values, left = read(tmp_path, {"setup.cfg": text}, "cpu")
    assert values["python"] == "3.13"
    assert "setup.cfg:3: setup_requires: builds the package" in left


def test_a_line_is_the_one_that_has_the_whole_text(tmp_path: Path) -> None:
    text = (
        '[project]\nname = "own"\nkeywords = ["pytorch"]\n# torch needs\ndependencies = [\n'
        '  "torch",\n]\n[project.scripts]\nown = "own.cli:main"\n'
        '[build-system]\nrequires = ["torchao", "torch"]\n'
    )
    _, left = read(tmp_path, {"pyproject.toml": text})
    assert "pyproject.toml:9: the script own" in left
    assert "pyproject.toml:11: torch" in left


def test_installing_the_repository_itself_is_no_wheel_that_lacks(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("setup(install_requires=['torch'])\n")
    dockerfile = "RUN pip install .\nRUN pip install -e '.[gpu]'\nRUN pip install ./apex\n"
    _, left = read(tmp_path, {"Dockerfile": dockerfile})
    assert "Dockerfile:1: .: what this repository's own files ask for is read there" in left
    assert "Dockerfile:2: -e .[gpu]: what this repository's own files" in left
    assert "Dockerfile:3: ./apex: names a URL or a file" in left


def test_what_uv_reads_beside_requirements_is_read_as_what_it_is(tmp_path: Path) -> None:
    values, left = read(
        tmp_path,
        {
            "Dockerfile": "RUN uv pip install -r pyproject.toml --extra gpu --group train\n"
            "RUN uv pip install -r lib/setup.py -r pylock.toml -c setup.cfg -r requirements.lock\n",
            "pyproject.toml": '[project]\nname = "own"\ndescription = """\nsecret\n"""\n'
            'dependencies = ["torch==2.9.1"]\n[project.optional-dependencies]\n'
            'gpu = ["optuna"]\ndev = ["ruff"]\n[dependency-groups]\ntrain = ["rich"]\n',
            "lib/setup.py": "def f():\n    pass\nsetup(install_requires=['attrs'])\n",
            "pylock.toml": "[[packages]]\nname = 'numpy'\n",
            "setup.cfg": "[options]\ninstall_requires =\n    click\n",
            "requirements.lock": "tqdm==4.67.1\n",
        },
    )
    assert values["torch"] == "2.9.1"
    assert values["requirements"] == ["optuna", "rich", "attrs", "numpy", "tqdm==4.67.1", "click"]
    assert "Dockerfile:2: -c setup.cfg: is no list of requirements" in left
    assert "pyproject.toml:9: ruff: belongs to the extra dev" in left


def test_conda_s_names_in_a_list_for_pip_are_asked_of_no_index(tmp_path: Path) -> None:
    values, left = read(
        tmp_path,
        {"requirements.txt": "pytorch==2.9.1\npython>=3.12\ncudatoolkit==11.3\ntf==2.0\nrich\n"},
        "t4-torch",
    )
    assert (values["torch"], values["python"]) == ("2.9.1", "3.13")
    assert values["requirements"] == ["rich"]
    for line in ("1: pytorch==2.9.1", "3: cudatoolkit==11.3", "4: tf==2.0"):
        assert f"requirements.txt:{line}: is conda's name: PyPI may have another" in left


def test_what_conda_exports_is_read_as_conda_s(tmp_path: Path) -> None:
    lines = "_libgcc_mutex=0.1=main\npytorch=2.9.1=py3.11_cuda12\npython=3.13.2=h0\nnumpy=2.1=a\n"
    values, left = read(tmp_path, {"requirements.txt": lines})
    assert values == {"accelerator": "T4", "torch": "2.9.1", "python": "3.13"}
    assert "requirements.txt:4: numpy=2.1=a: a conda package" in left


def test_what_the_program_alone_imports_wins_over_what_its_tests_need(tmp_path: Path) -> None:
    extra = "[project]\n[project.optional-dependencies]\ntest = ['torch==2.9.1']\n"
    values, _ = read(tmp_path, {"pyproject.toml": extra, "train.py": "import flax\n"})
    assert "jax" in values
    values, _ = read(tmp_path, {"train.py": "import flax, torch\n"})
    assert values["torch"] == "2.9.1", "of two the one that a file names, with its release"


def test_the_groups_that_uv_run_installs_count(tmp_path: Path) -> None:
    run = "RUN uv run --frozen --group train python -m x --extra no --group no\n"
    groups = "[dependency-groups]\ntrain = ['torch==2.9.1', 'rich']\nno = ['ruff']\n"
    values, left = read(tmp_path, {"Dockerfile": run, "pyproject.toml": groups})
    assert (values["torch"], values["requirements"]) == ("2.9.1", ["rich"])
    assert "ruff: belongs to dependency-groups.no" in left


def test_of_a_file_beside_the_image_s_a_person_is_shown_the_first_lines() -> None:
    long = [f"requirements/jax.txt:{n}: a{n}: the image is not made from requirements/jax.txt"
            for n in range(1, 20)]  # fmt: skip
    own = [f"requirements.txt:{n}: a{n}: names a URL" for n in range(1, 20)]
    shown = list(folded([*own, *long, "image.yaml: no program"]))
    assert shown[:31] == [*own, *long[:12]]
    assert shown[31:] == [
        "requirements/jax.txt: 7 more lines of it, which --json has",
        "image.yaml: no program",
    ]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("Containerfile", "RUN pip install torch==2.9.1\n"),
        ("conda.yaml", "dependencies: [pytorch=2.9.1]\n"),
        ("requirements.in", "torch==2.9.1\n"),
    ],
)
def test_other_names_of_the_same_files_are_read(file: str, text: str, tmp_path: Path) -> None:
    assert read(tmp_path, {file: text})[0]["torch"] == "2.9.1"


def test_a_file_of_requirements_that_setup_cfg_names_is_followed(tmp_path: Path) -> None:
    text = "[options]\ninstall_requires = file: reqs/base.txt, reqs/none.txt\n"
    values, left = read(tmp_path, {"setup.cfg": text, "reqs/base.txt": "torch==2.9.1\n"})
    assert values["torch"] == "2.9.1"
    assert "setup.cfg:2: install_requires of reqs/none.txt: there is no such file" in left
