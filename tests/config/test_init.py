"""`builder init`: what a repository's own files say becomes image.yaml, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config import image_yaml, init
from builder.core.errors import InputError

FILES = {
    "requirements.txt": """\
# what it needs
tensorflow>=2.15
pandas==2.2.3  # tables
-r more.txt
--extra-index-url https://example.org/simple
git+https://github.com/a/b.git
nvidia-cudnn-cu12
pywin32>=300; sys_platform == "win32"
""",
    "more.txt": "scikit-learn\n",
    "uv.lock": '[[package]]\nname = "scikit-learn"\nversion = "1.7.2"\n',
    "pyproject.toml": '[project]\ndependencies = ["tqdm>=4"]\noptional-dependencies.dev = ["x"]\n',
    "environment.yml": """\
dependencies:
- python=3.10
- cudatoolkit=11.8
- pip: [keras-tuner==1.4.7]
""",
    "cog.yaml": """\
build: {python_version: "3.11", system_packages: [ffmpeg], run: [echo hi]}
predict: predict.py:Predictor
""",
    "Dockerfile": """\
FROM tensorflow/tensorflow:2.16.1-gpu
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 \\
    libsndfile1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -r requirements.txt wandb
RUN curl -sSL https://sdk.cloud.google.com | bash
ENV TF_CPP_MIN_LOG_LEVEL=1 PYTHONPATH=/app
COPY . /app
ENTRYPOINT ["python", "-m", "digits.train"]
""",
    "digits/__init__.py": "",
    "digits/train.py": "print(1)\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_files_say_becomes_a_target(repository: Path) -> None:
    init.write(init.propose(repository, "v100"))
    spec = image_yaml.load(repository, "v100")
    assert (spec.accelerator, spec.python, spec.release) == ("V100", "3.11", "2.21.0")
    assert sorted(spec.requirements) == [
        *("keras-tuner==1.4.7", "pandas==2.2.3", "scikit-learn==1.7.2", "tqdm>=4"),
        "wandb",
    ]
    assert spec.apt == ("ffmpeg", "libgl1", "libsndfile1")
    assert spec.environment == {"TF_CPP_MIN_LOG_LEVEL": "1"}
    assert (spec.program.folder, spec.program.module) == ("digits", "digits.train")
    assert (repository / "builder.toml").is_file()


@pytest.mark.parametrize(
    "line",
    [
        "requirements.txt:5: --extra-index-url",
        "requirements.txt:6: git+https",
        "requirements.txt:7: nvidia-cudnn-cu12: the factory locks",
        "requirements.txt:8: pywin32",
        "pyproject.toml: the extra dev",
        "environment.yml: dependencies[0]: Python 3.10: images have 3.11 or 3.13",
        "environment.yml: dependencies[1]: cudatoolkit=11.8: a conda package",
        'cog.yaml: build.run: ["echo hi"]',
        "cog.yaml: predict",
        "Dockerfile:1: FROM",
        "Dockerfile:5: RUN curl -sSL",
        "Dockerfile:6: PYTHONPATH=/app: PYTHONPATH cannot be set",
        "Dockerfile:7: COPY . /app",
    ],
)
def test_what_cannot_be_taken_is_named(repository: Path, line: str) -> None:
    left = init.propose(repository, "v100").findings.left
    assert [entry for entry in left if entry.startswith(line)], left


def test_no_file_that_is_there_changes_without_force(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.pyc")
    init.write(init.propose(repository, "cpu"))
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    assert not init.propose(repository, "cpu").files
    assert (repository / ".gitignore").read_text() == "*.pyc"
    yaml = repository / "images/cpu/image.yaml"
    yaml.write_text("accelerator: CPU\n")
    assert not init.propose(repository, "cpu").files
    init.write(init.propose(repository, "cpu", force=True))
    assert yaml.read_bytes() == before[yaml]
    assert (repository / ".gitignore").read_text() == "*.pyc\n/build/\n"


def test_an_empty_folder_gets_the_packaged_trainer(tmp_path: Path) -> None:
    init.write(init.propose(tmp_path, "L4"))
    assert image_yaml.load(tmp_path, "l4").program.module == "trainer.task"
    with pytest.raises(InputError, match="quantum"):
        init.propose(tmp_path, "quantum")


def test_a_script_beside_builder_toml_has_to_move(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (left,) = init.propose(tmp_path, "cpu").findings.left
    assert left.startswith("train.py: train.py: an image holds one folder")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/fit.py").write_text("")
    (tmp_path / "Dockerfile").write_text("CMD python src/fit.py --epochs 3\n")
    assert init.propose(tmp_path, "cpu").findings.program == ("src", "fit")


SHAPES = [
    ("pyproject.toml", '[project]\nrequires-python = ">=3.12"', "requires-python: Python 3.13", ""),
    ("pyproject.toml", '[project]\nrequires-python = "<3.9"', "", "requires-python: Python <3.9"),
    ("pyproject.toml", '[dependency-groups]\ntest = ["pytest"]', "", "the group test"),
    (
        "pyproject.toml",
        '[tool.poetry.dependencies]\npython = "^3.9"\nnumpy = "^1.2"',
        "",
        'numpy "^1.2": write it as a requirement',
    ),
    ("requirements.txt", "-e git+https://example.org/a/b.git#egg=b", "", "is no locked package"),
    ("requirements.txt", "tensorflow==2.5.9", "", "no release that the tables know fits"),
    ("environment.yaml", "channels: [b, a]\ndependencies: [pip]", "", 'channels: ["b", "a"]'),
    ("setup.py", "setup(install_requires=['numpy'])", "", "setup.py: the file: is not read"),
    ("requirements-dev.txt", "pytest", "", "requirements-dev.txt: the file: is not read"),
]
"""Of the files of five public training repositories: what `init` has to take, and to name."""


@pytest.mark.parametrize(("file", "text", "taken", "left"), SHAPES)
def test_no_line_that_public_repositories_have_is_lost(
    file: str, text: str, taken: str, left: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text + "\n")
    findings = init.propose(tmp_path, "v100").findings
    assert any(taken in line for line in findings.taken) == bool(taken)
    assert any(left in line for line in findings.left) == bool(left), findings.left
