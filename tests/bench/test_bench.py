"""What `make bench` computes and prints. No test asks for a measured value."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import bench
from bench import Row, image, input_pipeline, number, prune, quantity, startup, table
from bench.prune import Measured

ROOT = Path(__file__).parents[2]


def row(
    ours: float | None, theirs: float | None, bar: float | None = None, bar_of: str = "ratio"
) -> Row:
    return Row("build", ours, theirs, "docker build", "one run", bar=bar, bar_of=bar_of)  # type: ignore[arg-type]


def test_a_row_compares_and_holds_its_bar() -> None:
    assert row(2.0, 8.0).ratio == 0.25
    for ours, theirs in ((None, 8.0), (2.0, None), (2.0, 0.0)):
        missing = row(ours, theirs, bar=0.4)
        assert (missing.ratio, missing.met) == (None, None)
    assert row(4.0, 10.0, bar=0.4).met is True
    assert row(4.1, 10.0, bar=0.4).met is False
    assert row(0.1, None, bar=0.2, bar_of="ours").met is True
    assert row(0.3, None, bar=0.2, bar_of="ours").met is False
    assert row(4.0, 10.0).met is None


def test_a_table_shows_three_digits_and_what_was_missed() -> None:
    values = (None, 0.01234, 0.4, 12.34, 3643.4)
    assert [number(value) for value in values] == ["-", "0.0123", "0.4", "12.3", "3,643"]
    assert (quantity(3643.4, "MB"), quantity(None, "MB")) == ("3,643 MB", "-")
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
    assert (written["rows"][0]["ratio"], written["rows"][0]["met"]) == (0.25, True)
    assert "- build: one run\n- load: 0.1 on 2 cores" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match=r"sh -c 'echo no >&2; exit 3': exit code 3\nno"):
        bench.command("sh", "-c", "echo no >&2; exit 3")


def test_a_pull_weighs_each_layer_of_the_image_once() -> None:
    layers = [{"digest": f"sha256:{name}", "size": size} for name, size in (("a", 1000), ("b", 2))]
    manifest = {"config": {"digest": "sha256:c", "size": 10}, "layers": [*layers, layers[0]]}
    assert image.weight(manifest) == 1012
    real = {"digest": "sha256:real", "platform": {"os": "linux", "architecture": "amd64"}}
    attestation = {"digest": "sha256:x", "platform": {"os": "unknown", "architecture": "unknown"}}
    assert image.image_in({"manifests": [attestation, real]}) == "sha256:real"
    with pytest.raises(ValueError, match="2 images"):
        image.image_in({"manifests": [real, real, attestation]})


def test_a_way_that_stopped_early_or_has_no_disk_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taken = {
        "ours": image.Taken({"cold build": 40.0, "bytes": 2e9}),
        "theirs": image.Taken({"cold build": 80.0}, stopped="disk full"),
    }
    rows = {row.what: row for row in image.rows(taken)}
    assert (rows["cold build"].ratio, rows["cold build"].met) == (0.5, False)
    assert rows["bytes to pull"].ours == 2000
    assert rows["bytes to pull"].how.startswith("not measured whole: ")
    monkeypatch.setattr(image, "NEEDED_ALL", 1e18)
    assert image.main("v100", tmp_path) == 1
    assert "1000000000 GB are needed" in capsys.readouterr().err


def measured(mode: str, target: str, megabytes: float, pull: float, *failed: str) -> Measured:
    values = {"pull_bytes": megabytes * 1e6, "pull": pull, "first_step": 5.0}
    return Measured(mode, target, values=values, failed=list(failed))


def test_prune_builds_variants_of_a_base_together_and_compares_them(tmp_path: Path) -> None:
    project = image.copy(ROOT, tmp_path / "project")
    assert [group.variants for group in prune.groups(project, ("v100", "t4", "h100"))] == [
        (("off", "v100"), ("off", "t4"), ("off", "h100")),
        (("all", "v100"),),
        (("all", "t4"),),
        (("all", "h100"),),
        (("tensorflow", "v100"), ("tensorflow", "t4")),
        (("tensorflow", "h100"),),
        (),
    ]
    usual = measured(prune.POST, "", 3000.0, 55.0)
    pruned = measured("all", "v100", 900.0, 30.0, "_xla_ops.so", "libcufft.so.11")
    rows = {row.what: row for row in prune.rows([pruned, usual])}
    pull = rows["v100 all: to pull"]
    assert (pull.ours, pull.theirs, pull.ratio, pull.met) == (900.0, 3000.0, 0.3, True)
    assert rows["v100 all: pull and first step"].ours == 35.0
    off = measured("off", "v100", 2100.0, 30.0, "_xla_ops.so")
    assert prune.lost([off, pruned]) == {"v100 all": ["libcufft.so.11"]}
    table = prune.matrix([off, Measured("all", "v100", stopped="no space"), usual]).splitlines()
    assert table[2] == (
        "| v100 | 2,100 MB (0.70); 35 s | not measured | not measured | 3,000 MB; 60 s |"
    )


def test_the_program_that_times_rendering_still_renders() -> None:
    spent = bench.command(sys.executable, "-c", startup.RENDER, ROOT, cwd=ROOT)
    assert len(json.loads(spent)) == 1 + startup.WARM


@pytest.mark.parametrize(("load", "verdicts"), [(0.0, 4), (64.0, 0)])
def test_the_bench_of_the_input_gives_no_verdict_on_a_loaded_machine(
    load: float, verdicts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    names = {*input_pipeline.COMPARED, *(n for c in input_pipeline.COMPARED.values() for n in c)}
    monkeypatch.setattr(input_pipeline, "measure", lambda folder: dict.fromkeys(names, 0.001))
    assert input_pipeline.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("met") + printed.count("MISSED") == verdicts
    assert ("no verdict" in printed) == (not verdicts)


@pytest.mark.parametrize("name", ["devicecode", "trainer_loop"])
def test_a_bench_can_be_imported(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").__doc__
