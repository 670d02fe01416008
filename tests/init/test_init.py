"""`builder init`: what a repository's own files say becomes image.yaml, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config import compatibility, image_yaml
from builder.core import yamlfile
from builder.core.errors import InputError
from builder.init import proposal as init
from tests.conftest import Run

REPOSITORIES = Path(__file__).parent / "repositories"

FILES = {
    "requirements.txt": """\
# what it needs
tensorflow>=2.15
pandas==2.2.3  # tables
-r more.txt
git+https://github.com/a/b.git
nvidia-cudnn-cu12
pywin32>=300; sys_platform == "win32"
-e git+https://example.org/a/b.git#egg=b
nvidia-ml-py
""",
    "more.txt": "scikit-learn\n",
    "requirements-dev.txt": "pytest\n",
    "setup.py": "setup(install_requires=['numpy'])\n",
    "uv.lock": '[[package]]\nname = "scikit-learn"\nversion = "1.7.2"\n'
    '[[package]]\nname = "tensorflow"\nversion = "2.19.1"\n',
    "pyproject.toml": '[project]\ndependencies = ["tqdm>=4"]\ndynamic = ["dependencies"]\n'
    '[dependency-groups]\ntest = ["pytest"]\n[tool.uv.sources]\nx.index = "y"\n',
    "environment.yml": "dependencies: [python=3.10, pip: [keras-tuner==1.4.7]]\n",
    "cog.yaml": """\
build: {python_version: "3.11", system_packages: [ffmpeg], run: [echo hi]}
predict: predict.py:Predictor
""",
    "Dockerfile": """\
FROM tensorflow/tensorflow:2.16.1-gpu
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 \\
    libsndfile1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -r requirements.txt wandb
ENV TF_CPP_MIN_LOG_LEVEL=1
ENTRYPOINT ["python", "-m", "digits.train"]
""",
    ".dockerignore": "*.pyc\n",
    "digits/__init__.py": "",
    "digits/train.py": "print(1)\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_files_say_becomes_a_target(
    repository: Path, monkeypatch: pytest.MonkeyPatch, builder: Run
) -> None:
    proposal = init.propose(repository, "v100")
    monkeypatch.chdir(repository)
    assert json.loads(builder("init", "--target", "v100", "--json")[1])["image"] == proposal.values
    spec = image_yaml.load(repository, "v100")
    assert (spec.accelerator, spec.python, spec.release) == ("V100", "3.11", "2.19.1")
    assert sorted(spec.requirements) == [
        *("keras-tuner==1.4.7", "numpy", "nvidia-ml-py", "pandas==2.2.3", "scikit-learn==1.7.2"),
        *("tqdm>=4", "wandb"),
    ]
    assert spec.apt == ("ffmpeg", "libgl1", "libsndfile1")
    assert spec.environment == {"TF_CPP_MIN_LOG_LEVEL": "1"}
    assert (spec.program.folder, spec.program.module) == ("digits", "digits.train")
    assert (repository / "builder.toml").is_file()
    assert sorted(line.split(" ", 1)[0] for line in proposal.findings.left) == [
        *(".dockerignore:", "Dockerfile:1:", "Dockerfile:2:", "Dockerfile:3:", "cog.yaml:1:"),
        *("cog.yaml:2:", "environment.yml:1:", "pyproject.toml:3:", "pyproject.toml:5:"),
        "requirements-dev.txt:1:",
        *(f"requirements.txt:{number}:" for number in (5, 6, 7, 8)),
    ]


PUBLIC = {
    "chemprop": ("v100", {"torch": "2.10.0", "python": "3.11"}),
    "f5-tts": ("b200", {"torch": "2.15.0", "python": "3.11"}),
    "flax-lm1b": ("cpu-jax", {"jax": "0.6.2", "python": "3.11"}),
    "levanter": ("tpu", {"jax": "0.12.0.1", "python": "3.13"}),
    "spleeter": ("cpu", {"tensorflow": "2.12.1", "python": "3.11"}),
}


def lines_of(path: Path) -> Iterator[str]:
    """Yield a pattern for each line of a file that says what a job needs."""
    if path.suffix == ".toml":
        content: dict[str, Any] = tomllib.loads(path.read_text())
        table, poetry = content.get("project", {}), content.get("tool", {}).get("poetry", {})
        needed = [*table.get("dependencies", ()), *poetry.get("dependencies", ())]
        yield from (rf": (?i:{re.split('[^A-Za-z0-9_.-]', entry)[0]})\b" for entry in needed)
        parts = [*table.get("optional-dependencies", ()), *table.get("scripts", ())]
        yield from (rf":.* the (extra|script) {name}:" for name in parts)
        yield from (rf"\.{key}:" for key in poetry.keys() & {"dev-dependencies", "scripts"})
    elif path.suffix == ".yml":
        entries = yamlfile.parse(path.read_text(), path.name).value["dependencies"]
        lines = [*enumerate(path.read_text().splitlines(), 1)]
        begin = next(number for number, line in lines if line.startswith("dependencies:"))
        listed = [number for number, line in lines[begin:] if re.match(r"\s*- ", line)]
        assert len(listed) >= len(entries)
        yield from (rf":{number}: " for number in listed)
    else:
        start = "[A-Z]+ " if path.name == "Dockerfile" else r"[^#\s]"
        lines = enumerate(path.read_text().splitlines(), 1)
        yield from (f":{number}: " for number, line in lines if re.match(start, line))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_repository_gets_an_image_and_no_line_of_it_is_lost(
    name: str, tmp_path: Path
) -> None:
    shutil.copytree(REPOSITORIES / name, tmp_path, dirs_exist_ok=True)
    target, versions = PUBLIC[name]
    proposal = init.propose(tmp_path, target)
    init.write(proposal)
    spec = image_yaml.load(tmp_path, target)
    assert compatibility.resolve(spec).release in versions.values()
    assert proposal.values.items() >= versions.items()
    taken, left = proposal.findings.taken, proposal.findings.left
    said = "\n".join([*taken, *left])
    for path in (REPOSITORIES / name).iterdir():
        wanted = list(lines_of(path))
        assert len(wanted) >= 9
        missing = [each for each in wanted if not re.search(f"^{path.name}.*{each}", said, re.M)]
        assert missing == []
    row = f"| {name} | `{target}` | {len(taken)} | {len(left)} | "
    assert row in (REPOSITORIES / "README.md").read_text()


@pytest.mark.parametrize(
    ("requirements", "target", "said"),
    [
        ("torch>=2.0,<2.12", "v100", "-> torch: 2.10.0, python: 3.11 (PyTorch 2.11.0 (CUDA 13.0"),
        ("jax", "cpu", "-> jax: 0.12.0.1, python: 3.13 (JAX 0.12.0.1 does not run on Python 3.11)"),
        ("jaxlib\nflax", "h100", "requirements.txt:1: jaxlib -> jax: 0.12.0.1, python: 3.13"),
        ("", "tpu", "nothing names a framework: TensorFlow, the default -> tensorflow: 2.20.0, "
         "python: 3.11 (TensorFlow 2.21.0 has no"),
        ("", "B200-JAX", "--target b200-jax -> jax: 0.12.0.1"),
        ("torch==2.6.0", "h100", "torch==2.6.0: the tables have no such release; image.yaml has "
         "torch: 2.7.1, python: 3.11, the nearest that works on H100"),
        ("torch==2.12.1", "v100", "torch==2.12.1: PyTorch 2.12.1 (CUDA 13.0, cuDNN 9.20.0.48) has "
         "no kernels for V100 (7.0); image.yaml has torch: 2.10.0"),
        ("torch", "t4", "no program is recognized: the packaged trainer has no PyTorch"),
    ],
)  # fmt: skip
def test_a_release_that_works_is_chosen_and_said(
    requirements: str, target: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(requirements)
    proposal = init.propose(tmp_path, target)
    assert said in "\n".join([*proposal.findings.taken, *proposal.findings.left])
    init.write(proposal)
    compatibility.resolve(image_yaml.load(tmp_path, target.lower()))


@pytest.mark.parametrize(
    ("requirements", "target", "error", "fix"),
    [
        ("torch", "cpu", "requirements.txt:1: torch: CPU: PyPI's wheel of PyTorch", "v100 or t4"),
        ("", "b200", "--target b200: TensorFlow 2.21.0", "b200-torch or b200-jax"),
        ("", "k80", "--target k80: K80 is no longer offered", "--target cpu or p4 or p100 or v100"),
        ("jax\nkeras\ntensorflow", "l4", "requirements.txt:1: jax; requirements.txt:3: tensorflow: "
         "an image has one framework", "pass --target l4-jax or l4-tensorflow"),
        ("", "cpu-torch", "--target cpu-torch: CPU", "pass --target cpu-tensorflow or cpu-jax"),
        ("", "quantum", "no accelerator is called 'quantum'", "known: CPU, K80"),
        ("", "gpu", "no accelerator is called 'gpu'", "known: CPU, K80"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_what_to_pass(
    requirements: str, target: str, error: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text(requirements)
    with pytest.raises(InputError, match=re.escape(error)) as refused:
        init.propose(tmp_path, target)
    assert fix in refused.value.fix
    assert "write TPU" not in refused.value.fix


def test_no_file_that_is_there_changes_without_force(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.pyc\nbuild/\n")
    init.write(init.propose(repository, "cpu"))
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    assert not init.propose(repository, "cpu").files
    assert (repository / ".gitignore").read_text() == "*.pyc\nbuild/\n"
    yaml = repository / "images/cpu/image.yaml"
    yaml.write_text("accelerator: CPU\n")
    yaml.parent.rename(yaml.parents[1] / "mine")  # a target that is no accelerator
    assert not init.propose(repository, "mine").files
    init.write(init.propose(repository, "cpu", force=True))
    assert yaml.read_bytes() == before[yaml]
    assert (repository / ".dockerignore").read_text() == "*.pyc\n/build/\n"
    (repository / ".gitignore").write_text("*.pyc")
    assert init.propose(repository, "cpu").files == {repository / ".gitignore": "*.pyc\n/build/\n"}


def test_a_script_at_the_root_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model\n")
    proposal = init.propose(tmp_path, "cpu")
    assert proposal.values["program"] == ".:train"
    init.write(proposal)
    assert image_yaml.load(tmp_path, "cpu").program.module == "train"
    (tmp_path / "src").mkdir()
    (tmp_path / "src/fit.py").write_text("")
    (tmp_path / "Dockerfile").write_text("CMD python src/fit.py --epochs 3\n")
    assert init.propose(tmp_path, "h100").findings.program == ("src", "fit")


def test_what_the_program_imports_and_no_file_asks_for_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy, os, tiktoken, yaml\nimport torch\nfrom model import x\n"
        "from PIL import Image\ndef f():\n    import wandb\n"
    )
    (tmp_path / "model.py").write_text("from . import y\nimport einops.layers\n")
    (tmp_path / "requirements.txt").write_text("einops\npyyaml\n")
    left = init.propose(tmp_path, "t4").findings.left
    (line,) = [line for line in left if "no file asks for" in line]
    assert line.startswith("train: imports PIL, numpy, tiktoken: ")
    (tmp_path / "train.py").write_text("import keras, numpy, tensorflow\n")  # it brings them
    assert "no file asks for" not in str(init.propose(tmp_path, "cpu").findings.left)


def test_no_lock_takes_the_program_s_own_file_where_it_comes_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "src/requirements.txt").write_text("ours\n")
    run = "RUN pip install -r src/requirements.txt"
    for options, program in (("", ("src", "train")), (" --no-index -f /wheels", None)):
        (tmp_path / "Dockerfile").write_text(f"FROM debian\n{run}{options}\n")
        proposal = init.propose(tmp_path, "cpu")
        assert proposal.findings.program == program
        assert ("ours" in str(proposal.values)) is bool(program)
    assert "write program: src:train" in str(proposal.findings.left)


def test_what_lies_beside_the_program_is_taken_with_it_or_named(tmp_path: Path) -> None:
    for name, text in {
        "fit/__init__.py": "",
        "fit/train.py": "open('configs/base.yaml')\nopen('data/a')\nopen('x/y')\n",
        "fit/data/a": "",
        "configs/base.yaml": "",
        "common/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    findings = init.propose(tmp_path, "cpu").findings
    assert findings.program == ("fit", "fit.train")
    beside = [line for line in findings.left if "opens" in line]
    assert [line.split(": lies")[0] for line in beside] == ["fit/train.py:1: opens configs/"]
    for line in (
        "os.path.join('configs', 'a')", "Path(__file__).parent.parent / 'configs'",
        "@hydra.main(config_path='../configs')\ndef f(): pass", "open(f'./configs/a')",
        "parser.add_argument('--configs', default='configs')",
    ):  # fmt: skip
        (tmp_path / "fit/train.py").write_text(line)
        assert "opens configs/" in str(init.propose(tmp_path, "cpu").findings.left), line
    (tmp_path / "fit/train.py").write_text("x['configs'] = 'configs'\n")
    assert "opens" not in str(init.propose(tmp_path, "cpu").findings.left), "that is no path"
    (tmp_path / "fit/train.py").write_text("from common import x\n")
    assert init.propose(tmp_path, "cpu").values["program"] == ".:fit.train"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("requirements.txt", "pandas\n".encode("utf-16"), "requirements.txt:1: pandas"),
        ("pyproject.toml", b'\xef\xbb\xbf[project]\ndependencies = ["a1"]\n', "toml:2: a1"),
        ("requirements.txt", b"git+https://a.org/b.git", "names a URL or a file, which"),
        ("requirements.txt", b"./b-1-py3-none-any.whl", "names a URL or a file, which"),
        ("pyproject.toml", b'[tool.poetry.dependencies]\na = [{version = "1", python = "<3.9"}]\n',
         'a [{"version": "1", "python": "<3.9"}]: write it as a requirement'),
        ("pyproject.toml", b'[project]\ndependencies = ["A_b>1"]\n[tool.uv.sources]\na-b.git = ""',
         "A_b>1: tool.uv.sources takes it from elsewhere"),
        ("pyproject.toml", b'[tool.poetry.dependencies]\na = {version = "1", x = 2026-01-01}\n',
         '"x": "2026-01-01"}: write it as a requirement'),
        ("uv.lock", b"package = [3]", "TensorFlow, the default -> tensorflow"),
        ("requirements.txt", b"-c bounds.txt", "-c bounds.txt: there is no such file"),
        ("requirements.txt", b"-r more.txt", "requirements.txt:1: -r more.txt: there is no such"),
        ("Dockerfile", b"RUN pip install -r /etc/passwd", ":1: -r /etc/passwd: there is no"),
        ("Dockerfile", b"RUN pip install -r ../../etc/passwd", "passwd: it lies outside"),
        ("Dockerfile", b"RUN pip install rich -f http://[a", "-f http://[a: an index or"),
        ("Dockerfile", b"RUN pip install -r a\0b", "the file: is no text: save it as UTF-8"),
        ("requirements.txt", b"tensorboard~=0", "tensorboard~=0' is not a requirement"),
        ("Dockerfile", b"ENV API_KEY=0f3e5d7c9b1a2846", "API_KEY: looks like a secret"),
        ("p\xe4ck/train.py", b"", "the packaged trainer, as no program is recognized"),
    ],
)  # fmt: skip
def test_what_is_written_in_another_way_is_read_or_named(
    file: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).parent.joinpath("__init__.py").touch()
    (tmp_path / file).write_bytes(content)
    findings = init.propose(tmp_path, "cpu").findings
    assert said in "\n".join([*findings.taken, *findings.left])
    assert "0f3e5d7c9b1a2846" not in str(findings)
