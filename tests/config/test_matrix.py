"""Lists of `tensorflow` and `python` in image.yaml: a target for each combination."""

from pathlib import Path

import pytest

from builder.config import image_yaml, matrix
from builder.core.errors import InputError

MATRIX = """\
accelerator: V100
size_budget: 2.6 GB
tensorflow: [2.19.1, 2.20.0, 2.21.0]
python:
  - 3.11
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "task.py").touch()
    for name, text in (("v100", MATRIX), ("cpu", "accelerator: CPU\nsize_budget: 1 GB\n")):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "image.yaml").write_text(text)
    return tmp_path


def test_a_matrix_gives_a_target_for_each_combination(project: Path) -> None:
    assert image_yaml.targets(project) == (
        "cpu",
        "v100-tf2.19-py311",
        "v100-tf2.20-py311",
        "v100-tf2.21-py311",
    )
    spec = image_yaml.load(project, "v100-tf2.20-py311")
    assert (spec.name, spec.release, spec.python) == ("v100-tf2.20-py311", "2.20.0", "3.11")
    assert spec.source == project / "images" / "v100" / "image.yaml"


def test_the_folder_stands_for_all_its_targets(project: Path) -> None:
    assert image_yaml.named(project, ["v100", "cpu", "v100-tf2.19-py311"]) == (
        "v100-tf2.19-py311",
        "v100-tf2.20-py311",
        "v100-tf2.21-py311",
        "cpu",
    )
    with pytest.raises(InputError, match="v100 is none of its targets"):
        image_yaml.load(project, "v100")


def test_two_releases_of_one_minor_are_named_whole() -> None:
    assert list(matrix.variants("t4", {"tensorflow": ["2.19.0", "2.19.1", "2.20.0"]})) == [
        "t4-tf2.19.0",
        "t4-tf2.19.1",
        "t4-tf2.20",
    ]


@pytest.mark.parametrize("wrong", ["[]", "[2.20.0, 2.20.0]", "[{a: b}]", "[[2.20.0]]"])
def test_a_list_that_is_no_matrix_is_refused_at_its_line(project: Path, wrong: str) -> None:
    file = project / "images" / "cpu" / "image.yaml"
    file.write_text(f"accelerator: CPU\nsize_budget: 1 GB\ntensorflow: {wrong}\n")
    assert "cpu" in image_yaml.targets(project)
    with pytest.raises(InputError, match=r"images/cpu/image\.yaml:3: tensorflow"):
        image_yaml.load(project, "cpu")


def test_a_wrong_entry_is_refused_at_its_field(project: Path) -> None:
    file = project / "images" / "cpu" / "image.yaml"
    file.write_text("accelerator: CPU\nsize_budget: 1 GB\npython: [3.11, three]\n")
    with pytest.raises(InputError, match=r"image\.yaml:3: python: 'three' is not a Python version"):
        image_yaml.load(project, "cpu-pythree")
