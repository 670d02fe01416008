"""What `make bench` computes and prints. No test asks for a measured value."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import bench
from bench import Row, image, number, quantity, startup, table


def row(
    ours: float | None, theirs: float | None, bar: float | None = None, bar_of: str = "ratio"
) -> Row:
    return Row("build", ours, theirs, "docker build", "one run", bar=bar, bar_of=bar_of)  # type: ignore[arg-type]


def test_ratio_is_ours_over_theirs() -> None:
    assert row(2.0, 8.0).ratio == 0.25


@pytest.mark.parametrize(("ours", "theirs"), [(None, 8.0), (2.0, None), (2.0, 0.0)])
def test_no_ratio_where_one_side_was_not_measured(ours: float, theirs: float) -> None:
    assert row(ours, theirs, bar=0.4).ratio is None
    assert row(ours, theirs, bar=0.4).met is None


def test_a_bar_holds_for_the_ratio_or_for_ours_alone() -> None:
    assert row(4.0, 10.0, bar=0.4).met is True
    assert row(4.1, 10.0, bar=0.4).met is False
    assert row(0.1, None, bar=0.2, bar_of="ours").met is True
    assert row(0.3, None, bar=0.2, bar_of="ours").met is False
    assert row(4.0, 10.0).met is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.01234, "0.0123"), (0.4, "0.4"), (12.34, "12.3"), (3643.4, "3,643")],
)
def test_numbers_show_three_digits_that_count(value: float | None, text: str) -> None:
    assert number(value) == text


def test_quantities_have_their_unit_unless_there_is_none_to_show() -> None:
    assert quantity(3643.4, "MB") == "3,643 MB"
    assert quantity(None, "MB") == "-"


def test_a_missed_bar_and_a_missing_measurement_are_said() -> None:
    shown = table([row(5.0, 10.0, bar=0.4), row(None, 10.0, bar=0.4)]).splitlines()
    assert "<= 0.4 MISSED" in shown[2]
    assert "<= 0.4 not measured" in shown[3]
    assert len({len(line) for line in shown}) == 1


def test_a_report_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    bench.report("image", [row(2.0, 8.0, bar=0.4)], {"load": "0.1 on 2 cores"})
    written = json.loads((tmp_path / "results/image.json").read_text())
    assert written["rows"][0]["ratio"] == 0.25
    assert written["rows"][0]["met"] is True
    assert "- build: one run\n- load: 0.1 on 2 cores" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["image.json"]


def test_a_program_that_fails_says_which_and_why() -> None:
    with pytest.raises(RuntimeError, match=r"sh -c 'echo no >&2; exit 3': exit code 3\nno"):
        bench.command("sh", "-c", "echo no >&2; exit 3")


MANIFEST = {
    "config": {"digest": "sha256:c", "size": 10},
    "layers": [
        {"digest": "sha256:a", "size": 1000},
        {"digest": "sha256:b", "size": 200},
        {"digest": "sha256:a", "size": 1000},
    ],
}


def test_a_pull_weighs_its_configuration_and_each_layer_once() -> None:
    assert image.weight(MANIFEST) == 1210


def test_the_image_of_an_index_is_the_one_that_is_no_attestation() -> None:
    real = {"digest": "sha256:real", "platform": {"os": "linux", "architecture": "amd64"}}
    note = {"digest": "sha256:note", "platform": {"os": "unknown", "architecture": "unknown"}}
    assert image.image_in({"manifests": [note, real]}) == "sha256:real"
    with pytest.raises(ValueError, match="2 images"):
        image.image_in({"manifests": [real, real, note]})


def test_rows_of_a_way_that_stopped_early_say_so() -> None:
    taken = {
        "ours": image.Taken({"cold build": 40.0, "bytes": 2e9}),
        "theirs": image.Taken({"cold build": 80.0}, stopped="disk full"),
    }
    found = {one.what: one for one in image.rows(taken)}
    assert found["cold build"].ratio == 0.5
    assert found["cold build"].met is False
    assert found["bytes to pull"].ours == 2000
    assert found["bytes to pull"].how.startswith("not measured whole: ")
    assert found["proof"].met is None


def test_too_little_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(image, "NEEDED_ALL", 1e18)
    assert image.main("v100", tmp_path) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "1000000000 GB are needed" in line


def test_a_bake_file_builds_a_base_and_an_image_for_each_target() -> None:
    made = startup.bake_file(("cpu", "v100"))
    assert made["group"] == {"default": {"targets": ["cpu", "v100"]}}
    assert set(made["target"]) == {"cpu-base", "cpu", "v100-base", "v100"}  # type: ignore[call-overload]


def test_the_program_that_times_rendering_still_renders() -> None:
    program = startup.OURS + "work()\nprint(len(dockerfile.load_all(root)))"
    root = Path(__file__).parents[2]
    assert int(bench.command(sys.executable, "-c", program, root, cwd=root)) >= 7


@pytest.mark.parametrize("name", ["change", "devicecode", "trainer_loop", "input_pipeline"])
def test_a_bench_can_be_imported(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").__doc__
