"""What people bring in: the shapes of public repositories' files, in words of our own.

Each row is a kind: its files, the framework and the release that are right for a T4, the
requirements and what has to be named. Of every file, each line is taken over or named.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.init import bases, dockerfiles
from builder.init import proposal as init
from builder.init.manifests import PYPI_URL

TRAIN = {"trainer/__init__.py": "", "trainer/train.py": "print(1)\n"}


@dataclass(frozen=True)
class Kind:
    """files: by their paths. versions: of image.yaml. requirements: what is taken. named: patterns
    of lines that are not."""

    files: dict[str, str]
    versions: dict[str, str]
    requirements: list[str] = field(default_factory=list)
    named: tuple[str, ...] = ()


NEWEST, NEAR_26 = {"torch": "2.15.0"}, {"torch": "2.7.1"}
KINDS = {
    "values of options": Kind(
        {
            "Dockerfile": "FROM python:3.11-slim\n"
            "RUN python -m pip install --root-user-action ignore --progress-bar off -c bounds.txt "
            "torch pandas\n"
            "RUN pip install -i https://mirror.example.org/simple --trusted-host mirror.example.org"
            " --timeout 100 einops\n"
            "RUN uv pip install --system --torch-backend cu128 --python 3.11 torchmetrics\n",
            "bounds.txt": "pandas<3\nscipy<2\n",
        },
        NEWEST,
        ["pandas<3", "torchmetrics"],
        (
            "Dockerfile:3: einops: it is installed from mirror.example.org",
            "Dockerfile:2: --root-user-action ignore, --progress-bar off: ",
            "bounds.txt:2: scipy<2: bounds what nothing here asks for",
        ),
    ),
    "wheels of one's own": Kind(
        {
            "Dockerfile": "FROM python:3.11 AS build\n"
            "RUN pip wheel -w /wheels -r requirements.txt\n"
            "FROM python:3.11\nCOPY --from=build /wheels /wheels\n"
            "RUN pip install --no-index --find-links /wheels -r requirements.txt torch==2.9.1\n",
            "requirements.txt": "ours\ntorchvision\n",
        },
        {"torch": "2.9.1"},
        ["torchvision"],
        ("requirements.txt:1: ours: it is installed with --no-index",),
    ),
    "an index in the lock": Kind(
        {
            "pyproject.toml": '[project]\ndependencies = ["torch", "ours", "rich"]\n'
            '[[tool.uv.index]]\nname = "own"\nurl = "https://ours.example.org"\nexplicit = true\n'
            '[tool.uv.sources]\nours = {index = "own"}\n',
            "uv.lock": '[[package]]\nname = "rich"\nversion = "14.0"\n'
            f'source = {{registry = "{PYPI_URL}"}}\n',
        },
        NEWEST,
        ["rich==14.0"],
        ("pyproject.toml:2: ours: it may be installed from ours.example.org",),
    ),
    "an index for all": Kind(
        {
            "pyproject.toml": '[project]\ndependencies = ["torch==2.9.1", "ours"]\n'
            '[[tool.uv.index]]\nurl = "https://ours.example.org"\n'
        },
        {"torch": "2.9.1"},
        [],
        ("pyproject.toml:2: ours: it may be installed from ours.example.org",),
    ),
    "another registry in the lock": Kind(
        {
            "requirements.txt": "jax\nours\n",
            "poetry.lock": '[[package]]\nname = "ours"\nversion = "1"\n[package.source]\n'
            'type = "legacy"\nurl = "https://ours.example.org"\nreference = "own"\n',
        },
        {"jax": "0.12.0.1"},
        [],
        ("poetry.lock: ours==1: poetry.lock has it from elsewhere",),
    ),
    "a name of one's own": Kind(
        {
            "pyproject.toml": '[project]\nname = "Our_Fit"\ndependencies = ["torch==2.9.1"]\n'
            '[project.optional-dependencies]\nall = ["our-fit[dev]"]\n',
            "Dockerfile": "FROM debian\nRUN pip install . && pip install our.fit rich\n"
            "RUN pip install requirements.txt\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
        ("our.fit: is this repository's own package", "Dockerfile:3: requirements.txt: names a"),
    ),
    "an index that whoever builds gives": Kind(
        {
            "Dockerfile": "FROM debian\nARG PIP_INDEX_URL\nRUN pip install jax==0.9.2 ours\n",
        },
        {"jax": "0.9.2"},
        [],
        ("Dockerfile:3: ours: it is installed from .PIP_INDEX_URL",),
    ),
    "uv's own configuration": Kind(
        {
            "requirements.txt": "torch==2.9.1\nours\n",
            "uv.toml": '[[index]]\nurl = "https://ours.example.org"\n',
        },
        {"torch": "2.9.1"},
        [],
        ("requirements.txt:2: ours: it may be installed from ours.example.org",),
    ),
    "an index in a variable": Kind(
        {
            "Dockerfile": "FROM nvidia/cuda:13.4.0-devel-ubuntu24.04\n"
            "ENV UV_INDEX=https://download.pytorch.org/whl/cu134\n"
            "RUN uv pip install --index-strategy unsafe-best-match torch torchvision\n"
        },
        NEWEST,
        ["torchvision"],
        ("Dockerfile:2: UV_INDEX=https://download", "--index-strategy unsafe-best-match"),
    ),
    "local labels": Kind(
        {
            "requirements.txt": "torch==2.6.0+cu126; platform_machine == 'x86_64'\n"
            "torch==2.6.0; platform_machine == 'aarch64'\ntorchvision==0.21.0+cu126\n"
            "tensorboard~=2.20.0\n"
        },
        NEAR_26,
        ["torchvision", "tensorboard~=2.20.0"],
        ("requirements.txt:1: torch==2.6.0.cu126.*: the tables have no such release",),
    ),
    "a release that is known": Kind(
        {"requirements.txt": "torch===2.9.1+cu126\ntorchvision==0.24.1+cu126\ntorchaudio>=2\n"},
        {"torch": "2.9.1"},
        ["torchvision==0.24.1", "torchaudio>=2"],
    ),
    "the only list, in a folder": Kind(
        {"requirements/requirements.txt": "torch==2.9.1\nrich\n", "Dockerfile.dev": "FROM a\n"},
        {"torch": "2.9.1"},
        ["rich"],
    ),
    "the list that others add to": Kind(
        {
            "requirements/base.txt": "torch==2.9.1\nrich\n",
            "requirements/dev.txt": "-r base.txt\npytest\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
        ("requirements/dev.txt:2: pytest: the image is not made from",),
    ),
    "what a later command uninstalls": Kind(
        {
            "Dockerfile": "FROM debian\nCOPY . .\nRUN pip uninstall -y rich\n"
            "RUN pip install -r requirements.txt einops && python -m pip uninstall ours einops\n"
            "RUN uv pip uninstall theirs\n",
            "requirements.txt": "torch==2.9.1\nrich\nours\n",
            "pyproject.toml": '[project]\nname = "a"\ndependencies = ["theirs", "tqdm"]\n',
        },
        {"torch": "2.9.1"},
        ["rich", "tqdm"],
        (
            "requirements.txt:3: ours: Dockerfile:4 uninstalls it",
            "Dockerfile:4: einops: Dockerfile:4 uninstalls it",
            "pyproject.toml:3: theirs: Dockerfile:5 uninstalls it",
        ),
    ),
    "files with extras": Kind(
        {
            "requirements.txt": "torch==2.9.1\nours-1.0-py3-none-any.whl[all]\n"
            "ours.zip ; python_version > '3'\n",
            "Dockerfile": "FROM debian\nRUN pip install 'ours.tar.bz2[a]' $OURS\n",
        },
        {"torch": "2.9.1"},
        [],
        (
            r"requirements.txt:2: ours-1.0-py3-none-any.whl.all.: names a URL or a file",
            "requirements.txt:3: ours.zip",
            "Dockerfile:2: .OURS: what a variable says is not known here",
        ),
    ),
    "pylock.toml": Kind(
        {
            "pyproject.toml": '[project]\ndependencies = ["torch", "rich>=13", "ours", "own"]\n',
            "pylock.toml": "".join(
                f'[[packages]]\nname = "{name}"\n{rest}\n'
                for name, rest in {
                    "torch": f'version = "2.9.1"\nindex = "{PYPI_URL}"',
                    "rich": f'version = "14.0"\nindex = "{PYPI_URL}"\nmarker = "os_name != \'nt\'"',
                    "ours": 'version = "1"\nwheels = [{url = "https://ours.example.org/o.whl"}]',
                    "own": 'vcs = {type = "git", url = "https://a.example/b"}',
                }.items()
            ),
        },
        {"torch": "2.9.1"},
        ["rich==14.0"],
        ("pylock.toml: ours==1, own: pylock.toml has it from elsewhere; it is not taken",),
    ),
    "a lock of ranges": Kind(
        {
            "pyproject.toml": '[tool.poetry.dependencies]\ntorch = "^2.9"\nrich = "^13.0"\n'
            'einops = {version = "*", extras = ["a"]}\ntqdm = "4.67.0"\n',
            "poetry.lock": "".join(
                f'[[package]]\nname = "{name}"\nversion = "{version}"\n'
                for name, version in (
                    ("torch", "2.9.1"), ("rich", "13.2"), ("einops", "0.8.1"), ("tqdm", "4.67.1"),
                )
            ),
        },
        {"torch": "2.9.1"},
        ["rich==13.2", "einops[a]==0.8.1", "tqdm==4.67.0"],
    ),
    "arguments": Kind(
        {
            "Dockerfile": "FROM debian\nARG TORCH=2.9.1\nARG VISION=0.24.1\n"
            "RUN pip install torch==${TORCH} torchvision==$VISION --index-url "
            "https://download.pytorch.org/whl/cu126\n"
        },
        {"torch": "2.9.1"},
        ["torchvision==0.24.1"],
    ),
    "an argument without a value": Kind(
        {"Dockerfile": "FROM debian\nARG TORCH\nRUN pip install torch==${TORCH} rich\n"},
        NEWEST,
        ["rich"],
    ),
    "a base": Kind(
        {
            "Dockerfile": "FROM pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime\n"
            "RUN pip install -r requirements.txt\n"
            'ENTRYPOINT ["python" "trainer/train.py"]\n',
            "requirements.txt": "torchvision\nwandb\n",
        },
        NEAR_26,
        ["wandb", "torchvision"],
        ("Dockerfile:1: FROM pytorch.* the nearest", "Dockerfile:3: ENTRYPOINT"),
    ),
    "a base of TensorFlow": Kind(
        {"Dockerfile": "FROM tensorflow/tensorflow:2.15.0-gpu\nRUN pip install keras==2.15.0\n"},
        {"tensorflow": "2.15.1"},
        ["keras"],
    ),
    "a document": Kind(
        {
            "Dockerfile": "FROM python:3.11-slim\nRUN <<EOF\nset -e\napt-get update\n"
            "apt-get install -y --no-install-recommends libsndfile1 git\n"
            "pip install --no-cache-dir torch==2.9.1 librosa\nEOF\n"
        },
        {"torch": "2.9.1"},
        ["librosa"],
        ("Dockerfile:3: set -e", "Dockerfile:4: apt-get update"),
    ),
    "conda": Kind(
        {
            "environment.yml": "name: train\nchannels: [pytorch]\ndependencies:\n"
            "  - python=3.9.12\n  - pytorch::pytorch=2.9.1=py3.11_cuda12.6*\n"
            "  - pytorch::pytorch-cuda=12.6\n  - pip\n  - pip:\n      - lightning\n"
            "      - torch-scatter -f https://data.pyg.org/whl/torch-2.9.1+cu126.html\n"
        },
        {"torch": "2.9.1"},
        ["lightning"],
        ("environment.yml:4: Python 3.9.12", "environment.yml:10: torch-scatter: it may be"),
    ),
    "conda in a Dockerfile": Kind(
        {
            "Dockerfile": "FROM debian\nRUN conda config --add channels conda-forge && \\\n"
            "    /opt/conda/bin/conda install -qy -n a -c pytorch -c conda-forge \\\n"
            "    pytorch=2.9.1=*cuda* pytorch-cuda=12.6 'torchvision>=0.20' \\\n"
            "    numpy=2.1 ours pandas=2=np2 $OURS\n"
            "RUN micromamba install -n base -c ours einops conda-forge::tqdm\n"
        },
        {"torch": "2.9.1"},
        ["numpy==2.1.*", "tqdm", "torchvision>=0.20"],
        (
            "Dockerfile:4: pytorch-cuda=12.6: an image has CUDA",
            "Dockerfile:5: ours, pandas=2=np2: a conda package: name it as a Python or Debian one",
            r"Dockerfile:3: \$OURS: what a variable says",
            "Dockerfile:6: einops: it may come from the channel ours",
        ),
    ),
    "a list of conda's": Kind(
        {
            "Dockerfile": "FROM debian\nCOPY lists/*.txt /a/\nCOPY env*.yml /e.yml\n"
            "RUN mamba install --file /a/conda.txt && mamba env update -n base -f /e.yml\n",
            "lists/conda.txt": "pytorch=2.9\nnumpy # 2\nours\n",
            "env-train.yml": "dependencies:\n- matplotlib-base\n",
        },
        {"torch": "2.9.1"},
        ["numpy", "matplotlib"],
        ("lists/conda.txt:3: ours: a conda package",),
    ),
    "pdm and pipenv in a Dockerfile": Kind(
        {
            "Dockerfile": "FROM debian\n"
            "RUN python -mpip install install pdm pipenv && pdm add -dG x tqdm\n"
            "RUN pipenv install 'torch==2.9.1' rich --system --index https://ours.example.org\n"
            "RUN pipenv install einops -r list.txt\nRUN pipenv sync --system\n",
            "list.txt": "attrs\n",
        },
        {"torch": "2.9.1"},
        ["tqdm", "attrs", "einops"],
        (
            "Dockerfile:2: install: is a word of the command",
            "Dockerfile:2: pdm, pipenv: installs packages",
            "Dockerfile:3: rich: it may be installed from ours.example.org",
            "Dockerfile:5: RUN pipenv sync --system: what this repository's own files ask for",
        ),
    ),
    "pipenv's lock": Kind(
        {
            "Pipfile": '[packages]\ntorch = ">=2"\nrich = "*"\nattrs = "*"\nown = "*"\n'
            'file = {file = "a.whl"}\n',
            "Pipfile.lock": json.dumps(
                {
                    "_meta": {
                        "sources": [
                            {"name": "p", "url": PYPI_URL},
                            {"name": "o", "url": "https://ours.example.org"},
                        ]
                    },
                    "default": {
                        "torch": {"version": "==2.9.1", "index": "p"},
                        "rich": {"version": "==14.0", "markers": "os_name != 'nt'", "index": "p"},
                        "attrs": {"version": "==25.1", "index": "o"},
                        "own": {"git": "https://a.example/b"},
                    },
                }
            ),
        },
        {"torch": "2.9.1"},
        ["rich==14.0"],
        (
            "Pipfile.lock: attrs==25.1: it may be installed from ours.example.org",
            "Pipfile.lock: own: Pipfile.lock has it from elsewhere",
            "Pipfile:6: file .*: write it as a requirement",
        ),
    ),
    "a script that the Dockerfile runs": Kind(
        {
            "Dockerfile": "FROM debian\nCOPY scripts /s\nWORKDIR /s\n"
            "RUN ls && bash setup.sh gpu && ./setup.sh cpu\n",
            "scripts/setup.sh": "set -e\nconda install -y pytorch=2.9.1\n"
            "if [ $1 = gpu ]; then pip install rich; else pip install attrs; fi\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
        (
            r"scripts/setup.sh:3: attrs: is run only if not \[ gpu = gpu \]",
            r"Dockerfile:4: RUN ./setup.sh cpu: no step",
        ),
    ),
    "a script beside": Kind(
        {"install.sh": "conda install -c pytorch pytorch=2.9.1\npip install rich\n"},
        {"torch": "2.9.1"},
        [],
        ("install.sh:2: rich: the image is not made from install.sh",),
    ),
    "a test whether a file is there": Kind(
        {
            "Dockerfile": "FROM debian\nWORKDIR /a\nCOPY . .\n"
            "RUN [ -f base.txt ] && pip install -r base.txt || pip install attrs\n"
            "RUN if [ ! -f more.txt ]; then pip install rich; else pip install click; fi\n",
            "base.txt": "torch==2.9.1\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
        (
            r"Dockerfile:4: attrs: is run only if pip install -r base.txt fails",
            r"Dockerfile:5: click: is run only if not \[ ! -f more.txt \]",
        ),
    ),
    "a Python": Kind(
        {"Dockerfile": "FROM python:3.13-slim\nRUN pip install tensorflow\n"},
        {"tensorflow": "2.21.0", "python": "3.13"},
    ),
    "a release that does not run on that Python": Kind(
        {"Dockerfile": "FROM python:3.13-slim\nRUN pip install tensorflow==2.15.0\n"},
        {"tensorflow": "2.15.1", "python": "3.11"},
    ),
    "Debian's packages": Kind(
        {
            "Dockerfile": "FROM ubuntu\n"
            "RUN apt-get install -y python3.10-dev python-is-python3 \\\n"
            "    cuda-toolkit-12-4 libcudnn8 -t jammy\nRUN pip install jax==0.9.2\n"
        },
        {"jax": "0.9.2"},
        [],
        (
            "Dockerfile:2: apt python3.10-dev, apt python-is-python3: every image has it",
            "Dockerfile:3: apt cuda-toolkit-12-4, apt libcudnn8: of NVIDIA's archive",
        ),
    ),
    "a recipe": Kind(
        {
            "conda-recipe/meta.yaml": '{% set version = "1" %}\npackage: {name: a}\n',
            "requirements.txt": "torch==2.9.1\n",
        },
        {"torch": "2.9.1"},
        [],
        ("conda-recipe/meta.yaml: the file: cannot be read",),
    ),
    "extras": Kind(
        {
            "pyproject.toml": '[project]\nname = "a"\ndependencies = ["rich"]\n'
            '[project.optional-dependencies]\ncpu = ["torch==2.9.1"]\ncu128 = ["torch==2.9.1"]\n'
        },
        {"torch": "2.9.1"},
        ["rich"],
        ("pyproject.toml:5: torch==2.9.1: belongs to the extra cpu",),
    ),
    "extras that the Dockerfile installs": Kind(
        {
            "pyproject.toml": '[project]\nname = "a"\ndependencies = ["jax>=0.5"]\n'
            '[project.optional-dependencies]\ngpu = ["jax[cuda12]==0.9.2"]\ndev = ["ruff"]\n'
            '[dependency-groups]\ntrain = ["optax", {include-group = "more"}]\n'
            'more = ["rich", "ours"]\n[tool.uv.sources]\nours = {git = "https://a.example/b"}\n',
            "Dockerfile": "FROM python:3.11 AS made\nRUN uv sync --extra gpu --group=train\n"
            "FROM python:3.11\nCOPY --from=made /app /app\n",
        },
        {"jax": "0.9.2"},
        ["rich", "optax"],
        ("pyproject.toml:6: ruff: belongs to the extra dev", "ours: tool.uv.sources takes it"),
    ),
    "an extra called all, of the repository's own": Kind(
        {
            "pyproject.toml": '[project]\nname = "a"\n[project.optional-dependencies]\n'
            'all = ["a[gpu, more]"]\ngpu = ["torch==2.9.1"]\nmore = ["rich"]\ndev = ["ruff"]\n',
            "Dockerfile": "FROM python:3.11\nCOPY . /a\nRUN pip install '.[all]'\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
        ("pyproject.toml:7: ruff: belongs to the extra dev",),
    ),
    "every extra": Kind(
        {
            "pyproject.toml": '[project]\nname = "a"\n[project.optional-dependencies]\n'
            'gpu = ["torch==2.9.1"]\nmore = ["rich"]\n',
            "Dockerfile": "FROM python:3.11\nRUN uv sync --all-extras\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
    ),
    "extras that pip installs": Kind(
        {
            "setup.py": "from setuptools import setup\nsetup(install_requires=['torch==2.9.1'],\n"
            "  extras_require={'train': ['rich'],\n 'dev': ['ruff']})\n",
            "setup.cfg": "[options.extras_require]\nmore = tqdm\nless = attrs\n",
            "Dockerfile": "FROM python:3.11\nCOPY . /a\nRUN pip install -e '.[train,more]'\n",
        },
        {"torch": "2.9.1"},
        ["rich", "tqdm"],
        ("setup.py:4: ruff: belongs to an extra", "setup.cfg:3: attrs: belongs to the extra less"),
    ),
    "conda's channels and pip's links": Kind(
        {
            "environment.yml": "dependencies:\n- pytorch::pytorch=2.9.1=*cuda12*\n"
            "- torchvision>=0.20\n- pip:\n  - --find-links https://wheels.example.org/a\n"
            "  - torch-scatter\n",
        },
        {"torch": "2.9.1"},
        ["torchvision>=0.20"],
        ("environment.yml:6: torch-scatter: it may be installed from wheels.example.org",),
    ),
    "pixi": Kind(
        {
            "pixi.toml": '[workspace]\nname = "a"\n[dependencies]\npytorch = "2.9.*"\n'
            '[pypi-dependencies]\nrich = ">=14"\n[feature.dev.dependencies]\npytest = "*"\n'
        },
        {"torch": "2.9.1"},
        ["rich>=14"],
        ("pixi.toml:4: pytorch==2.9", "pixi.toml:8: pytest: belongs to feature.dev.dep"),
    ),
    "pdm": Kind(
        {"pyproject.toml": '[tool.pdm.dev-dependencies]\ngpu = ["torch>=2.9,<2.10"]\n'},
        {"torch": "2.9.1"},
        [],
        ("pyproject.toml:2: torch>=2.9,<2.10: belongs to tool.pdm.dev-dependencies.gpu",),
    ),
    "hatch": Kind(
        {"pyproject.toml": '[tool.hatch.envs.default]\ndependencies = ["flax", "jax==0.9.2"]\n'},
        {"jax": "0.9.2"},
    ),
    "poetry": Kind(
        {"pyproject.toml": '[tool.poetry.group.gpu.dependencies]\ntorch = "^2.9.1"\n'},
        NEWEST,
        [],
        ("pyproject.toml:2: torch>=2.9.1,==2.*: belongs to tool.poetry.group.gpu",),
    ),
    "pipenv": Kind(
        {"Pipfile": '[packages]\ntorch = "==2.9.1"\nrich = "*"\n[dev-packages]\npytest = "*"\n'},
        {"torch": "2.9.1"},
        ["rich"],
        ("Pipfile:5: pytest: belongs to dev-packages",),
    ),
    "setup.py": Kind(
        {"setup.py": "from setuptools import setup\nNEEDS = ['torch',\n  'rich']\n"
         "setup(install_requires=NEEDS, extras_require={'dev': ['pytest']})\n"},
        NEWEST,
        ["rich"],
        ("setup.py:4: pytest: belongs to an extra",),
    ),
    "setup.cfg": Kind(
        {"setup.cfg": "[options]\ninstall_requires =\n    torch==2.9.1\n    rich\n"},
        {"torch": "2.9.1"},
        ["rich"],
    ),
    "Dockerfiles for each use": Kind(
        {
            "docker/Dockerfile.gpu": "FROM debian\nRUN pip install torch==2.9.1\n",
            "Dockerfile.serve": "FROM nginx\n",
        },
        {"torch": "2.9.1"},
        [],
        ("docker/Dockerfile.gpu:2: torch==2.9.1: the image is not made from docker/Dock",
         "Dockerfile.serve:1: FROM nginx"),
    ),
    "a Dockerfile of another name": Kind(
        {
            "Dockerfile.train": "FROM debian\nRUN pip install torch==2.9.1 rich\n",
            "dockerfile_tools.py": "import jax\n",
            ".devcontainer/Dockerfile": "FROM tensorflow/tensorflow\n",
        },
        {"torch": "2.9.1"},
        ["rich"],
    ),
    "other requirements": Kind(
        {"requirements-gpu.txt": "torch==2.9.1\n", "requirements.txt": "rich\n"},
        {"torch": "2.9.1"},
        ["rich"],
        ("requirements-gpu.txt:1: torch==2.9.1: the image is not made from",),
    ),
    "imports": Kind(
        {"trainer/train.py": "from trainer import model\n",
         "trainer/model.py": "import os\nfrom torch import nn\n",
         "tools/export.py": "import tensorflow\n"},
        NEWEST,
    ),
    "nothing": Kind({"requirements.txt": "pandas\n"}, {"tensorflow": "2.21.0"}, ["pandas"]),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_people_bring_in(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    for path, text in (TRAIN | kind.files).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    proposal = init.propose(tmp_path, "t4")
    assert proposal.values.items() >= kind.versions.items()
    assert proposal.values.get("requirements", []) == kind.requirements
    taken, left = proposal.findings.taken, proposal.findings.left
    for pattern in kind.named:
        assert any(re.search(pattern, line) for line in left), (pattern, left)
    for path, text in kind.files.items():
        if not path.endswith((".py", "lock", "lock.toml", "uv.toml", "meta.yaml")):
            missing = [line for line in lines(path, text) if not said(path, line, [*taken, *left])]
            assert missing == []
    default = any(line.startswith("nothing names a framework: TensorFlow, the") for line in taken)
    assert default is (name == "nothing")


URL = "https://ours.example.org/simple"
PROJECT = '[project]\ndependencies = ["torch==2.9.1", "ours"]\n'
PIXI = '[dependencies]\npytorch = "2.9.1"\n[pypi-dependencies]\nours = "*"\n[pypi-options]\n'
LISTS = {"a.txt": "torch==2.9.1\nours\n", "b.txt": f"--find-links {URL}\n"}


@pytest.mark.parametrize(
    "files",
    [
        {"Dockerfile": "FROM a\nARG ARGS\nRUN pip install $ARGS torch==2.9.1 ours\n"},
        {"Dockerfile": "FROM a\nRUN I=$(cat /run/secrets/i) && pip install $I torch==2.9.1 ours\n"},
        {"Dockerfile": f"FROM a\nARG A='-i {URL}'\nRUN pip install $A torch==2.9.1 ours\n"},
        {"Dockerfile": "FROM a\nCOPY x/pip /me/.config/pip\nRUN pip install torch==2.9.1 ours\n"},
        {"Dockerfile": "FROM a\nCOPY .pip /me/.pip\nRUN pip install torch==2.9.1 ours\n"},
        {"Dockerfile": f"FROM a\nRUN env PIP_INDEX_URL={URL} pip install torch==2.9.1 ours\n"},
        {"Dockerfile": "FROM a\nCOPY . .\nRUN pip install -r a.txt -r b.txt ours\n", **LISTS},
        {"requirements.txt": "-r a.txt\n-r c.txt\n", "c.txt": "-c b.txt\n", **LISTS},
        {"requirements.txt": f"torch==2.9.1\nours --index-url {URL}\n"},
        {"pixi.toml": f'{PIXI}index-url = "{URL}"\n'},
        {"pixi.toml": f'{PIXI}extra-index-urls = ["{URL}"]\n'},
        {"pixi.toml": f'{PIXI}find-links = [{{path = "wheels"}}]\n'},
        {"pyproject.toml": f'{PROJECT}[tool.uv.pip]\nextra-index-url = ["{URL}"]\n'},
        {"pyproject.toml": f'{PROJECT}[[tool.rye.sources]]\nname = "own"\nurl = "{URL}"\n'},
        {"pyproject.toml": PROJECT, "uv.toml": f'[pip]\nindex-url = "{URL}"\n'},
        {"pyproject.toml": PROJECT, "pdm.lock": f'[[package]]\nname = "ours"\ngit = "{URL}"\n'},
        {"cog.yaml": f"build: {{python_packages: [torch==2.9.1, ours, --index-url {URL}]}}\n"},
        {"cog.yaml": f"build: {{python_packages: [torch==2.9.1, ours], find_links: ['{URL}']}}\n"},
        *(
            {"Dockerfile": f"FROM a\nENV PATH=/a\n{line} pytorch=2.9.1 numpy ours\n"}
            for line in (
                "RUN conda install -c ours",
                f"RUN mamba install --channel={URL}",
                "RUN conda install --use-local",
                "RUN conda config --add channels ours && conda install",
                "RUN conda config --add channels conda-forge --add channels ours && conda install",
                "RUN micromamba config append channels ours && conda install",
                f"RUN conda config --set channel_alias {URL} && conda install",
                "ENV CONDA_CHANNELS=ours\nRUN conda install conda-forge::tqdm",
                "COPY .condarc /root/\nRUN conda install conda-forge::tqdm",
                f"RUN pip install torch==2.9.1 && pipenv install --pypi-mirror {URL} ours && true",
            )
        ),
        {
            "Dockerfile": "FROM a\nCOPY . /root\nRUN conda install pytorch=2.9.1 numpy ours\n",
            ".condarc": "channels: [ours]\n",
        },
        {"environment.yml": "channels: [ours]\ndependencies: [pytorch=2.9.1, numpy, ours]\n"},
        {
            "pixi.toml": '[workspace]\nchannels = ["conda-forge", "ours"]\n'
            '[dependencies]\npytorch = "2.9.1"\nnumpy = "*"\nours = "*"\n'
        },
        {
            "pixi.toml": '[dependencies]\npytorch = "2.9.1"\nours = "*"\n'
            'numpy = {version = "*", channel = "ours"}\ntqdm = {git = "https://a.example/b"}\n'
        },
    ],
)
def test_what_may_come_from_another_index_is_never_taken(
    files: dict[str, str], tmp_path: Path
) -> None:
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    proposal = init.propose(tmp_path, "t4")
    assert proposal.values["torch"] == "2.9.1" and "requirements" not in proposal.values
    assert any(": ours" in line or ", ours" in line for line in proposal.findings.left)


def lines(path: str, text: str) -> list[range]:
    """The lines of a file that say something; those of one instruction together."""
    numbered = list(enumerate(text.splitlines(), 1))
    if "Dockerfile" in path:
        every = list(dockerfiles.instructions(text))
        ends = [each.line for each in every[1:]] + [len(numbered) + 1]
        whole = [range(each.line, end) for each, end in zip(every, ends, strict=True)]
        inner = [
            range(first + number, first + number + 1)
            for each in every
            for first, document in each.heredocs
            for number, _ in enumerate(document.splitlines())
        ]
        return whole + inner
    structure = r"\s*(\[.*\]|(name|url|explicit|version|source) = .*|#.*|)|dependencies:|\s*- pip:"
    structure += r"|\s*install_requires =.*|ours = .*|dependencies = \[|\]"
    return [range(n, n + 1) for n, line in numbered if not re.fullmatch(structure, line)]


def said(path: str, where: range, every: list[str]) -> bool:
    return any(line.startswith(f"{path}:{number}: ") for number in where for line in every)


@pytest.mark.parametrize(
    ("files", "first", "second"),
    [
        ({"requirements.txt": "torch\njax\n"}, "requirements.txt:1: torch", "t4-jax"),
        ({"Dockerfile": "FROM tensorflow/tensorflow\nRUN pip install timm\n"}, "timm", "t4-torch"),
        ({"a/b.py": "import torch\n", "c.py": "import flax.linen\n"}, "a/b.py:1: import", "t4-jax"),
    ],
)
def test_where_two_are_named_it_asks(
    files: dict[str, str], first: str, second: str, tmp_path: Path
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(InputError, match=first) as refused:
        init.propose(tmp_path, "t4")
    assert second in refused.value.fix
    assert init.propose(tmp_path, second).values[second.removeprefix("t4-")]


def test_a_second_framework_that_is_no_plain_requirement_is_named(tmp_path: Path) -> None:
    text = "jax\ntorch @ https://example.org/torch-2.9.1-py3-none-any.whl\ntensorflow==2.20\n"
    (tmp_path / "requirements.txt").write_text(text)
    proposal = init.propose(tmp_path, "t4-jax")
    assert proposal.values["requirements"] == ["tensorflow==2.20"]
    assert any("names a URL, which cannot be locked" in line for line in proposal.findings.left)
    assert init.propose(tmp_path, "t4-torch").values["torch"] == "2.9.1"


@pytest.mark.parametrize(
    ("image", "framework", "release"),
    [
        ("pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime", "torch", "2.6.0"),
        ("docker.io/pytorch/pytorch", "torch", ""),
        ("tensorflow/tensorflow:2.15.0-gpu@sha256:0123", "tensorflow", "2.15.0"),
        ("tensorflow/tensorflow:latest-gpu", "tensorflow", ""),
        ("us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest", "torch", "2.4"),
        ("europe-docker.pkg.dev/vertex-ai/training/pytorch-xla.2-4.py310", "torch", "2.4"),
        ("us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-17.py310:latest", "tensorflow", "2.17"),
        ("gcr.io/deeplearning-platform-release/tf2-cpu.2-13.py310", "tensorflow", "2.13"),
        ("gcr.io/deeplearning-platform-release/pytorch-cu121.2-2.py310", "torch", "2.2"),
        ("us-docker.pkg.dev/deeplearning-platform-release/gcr.io/"
         "huggingface-pytorch-training-cu121.2-3.transformers.4-42.ubuntu2204.py310",
         "torch", "2.3"),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5.1-gpu-py311-cu124"
         "-ubuntu22.04-sagemaker", "torch", "2.5.1"),
        ("763104351884.dkr.ecr.${region}.amazonaws.com/huggingface-pytorch-training:2.1.0"
         "-transformers4.36.0-gpu-py310-cu121-ubuntu20.04", "torch", "2.1.0"),
        ("763104351884.dkr.ecr.eu-west-1.amazonaws.com/tensorflow-training:2.18-gpu-py310",
         "tensorflow", "2.18"),
        ("huggingface/transformers-pytorch-gpu:4.41.3", "torch", ""),
        ("huggingface/accelerate:gpu-release-0.30.0", "torch", ""),
        ("axolotlai/axolotl:main-20250401-py3.11-cu124-2.5.1", "torch", "2.5.1"),
        ("winglian/axolotl:main-latest", "torch", ""),
        ("nvcr.io/nvidia/pytorch:24.10-py3", "torch", ""),
        ("nvcr.io/nvidia/tensorflow:24.10-tf2-py3", "tensorflow", ""),
        ("ghcr.io/nvidia/jax:base-2024-10-01", "jax", ""),
        ("runpod/pytorch:2.1.0-py3.10-cuda11.8.0-devel-ubuntu22.04", "torch", "2.1.0"),
        ("mosaicml/pytorch:2.1.2_cu121-python3.10-ubuntu20.04", "torch", "2.1.2"),
        ("rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", "torch", "2.3.0"),
        ("localhost:5000/team/torch:2.9.1", "torch", "2.9.1"),
        ("someone/horovod:0.20.0-pytorch1.6.0-py38-cuda10.2", "torch", "1.6.0"),
        ("lightning/pytorch_lightning:base-cuda-py3.9-torch1.13-cuda11.7.1", "torch", "1.13"),
        ("python:3.11-slim", "", ""),
        ("nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04", "", ""),
        ("my/project", "", ""),
        ("", "", ""),
    ],
)  # fmt: skip
def test_what_a_published_image_is_called(image: str, framework: str, release: str) -> None:
    found = bases.of(image)
    assert ((found[0].name, found[1]) if found else ("", "")) == (framework, release)
