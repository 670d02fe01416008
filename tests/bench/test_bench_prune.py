"""What `python -m bench prune` plans and reports. No test asks for a measured value."""

import json
from pathlib import Path

import pytest

import bench
from bench import prune
from bench.image import copy
from bench.prune import Measured

ROOT = Path(__file__).parents[2]


def image(mode: str, target: str, size: float, pull: float = 30.0, **more: object) -> Measured:
    values = {"pull_bytes": size * 1e6, "pull": pull, "first_step": 5.0, "apparent_bytes": 4e9}
    return Measured(mode, target, values=values, **more)  # type: ignore[arg-type]


POST = image(prune.POST, "", 3000.0, 55.0)


def test_variants_of_a_base_are_built_together_and_the_usual_dockerfile_last(
    tmp_path: Path,
) -> None:
    project = copy(ROOT, tmp_path / "project")
    made = [group.variants for group in prune.groups(project, ("v100", "t4", "h100"))]
    assert made == [
        (("off", "v100"), ("off", "t4"), ("off", "h100")),
        (("all", "v100"),),
        (("all", "t4"),),
        (("all", "h100"),),
        (("tensorflow", "v100"), ("tensorflow", "t4")),
        (("tensorflow", "h100"),),
        (),
    ]
    assert "prune:" not in (ROOT / "images/v100/image.yaml").read_text()


def test_rows_hold_the_bar_against_the_usual_dockerfile() -> None:
    rows = {row.what: row for row in prune.rows([image("all", "v100", 900.0), POST])}
    pull = rows["v100 all: to pull"]
    assert (pull.ours, pull.theirs, pull.ratio, pull.met) == (900.0, 3000.0, 0.3, True)
    assert rows["v100 all: pull and first step"].ours == 35.0
    assert rows["v100 all: pull and first step"].theirs == 60.0
    (missed, *_) = prune.rows([image("all", "v100", 901.0), POST])
    assert missed.met is False


def test_rows_without_the_usual_dockerfile_have_no_ratio() -> None:
    (row, *_) = prune.rows([image("all", "v100", 900.0)])
    assert (row.ours, row.theirs, row.met) == (900.0, None, None)


def test_the_table_says_what_was_not_measured() -> None:
    stopped = Measured("all", "t4", stopped="no space")
    table = prune.matrix([image("off", "v100", 2100.0), stopped, POST]).splitlines()
    assert table[2] == (
        "| v100 | 2,100 MB (0.70); 35 s | not measured | not measured | 3,000 MB; 60 s |"
    )
    assert table[3].startswith("| t4 | not measured")
    assert prune.facts([stopped])["t4 all"] == "stopped: no space"


def test_a_library_that_only_a_pruned_image_cannot_open_is_a_fault() -> None:
    off = image("off", "v100", 2100.0, failed=["_xla_ops.so"])
    same = image("tensorflow", "v100", 1900.0, failed=["_xla_ops.so"])
    worse = image("all", "v100", 900.0, failed=["_xla_ops.so", "libcufft.so.11"])
    assert prune.lost([off, same]) == {}
    assert prune.lost([off, worse]) == {"v100 all": ["libcufft.so.11"]}


def test_a_stopped_run_can_be_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    assert prune.held() == []
    done: dict[str, Measured] = {}
    one, two = image("off", "v100", 2100.0), image("all", "v100", 900.0)
    for each in (one, two):
        done[each.name] = each
    with prune.kept(one, done):
        pass
    with prune.kept(two, done):
        raise RuntimeError("the index went away")
    assert [each.name for each in prune.held() if each.whole] == ["v100 off"]
    assert json.loads((tmp_path / "prune.json").read_text())["facts"]["v100 all"].startswith(
        "stopped: the index went away"
    )
