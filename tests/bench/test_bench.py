"""What `make bench` computes and prints. No test asks for a measured value."""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.config import image_yaml
from builder.image import layers_lock
from tests import ROOT
from tools import bench
from tools.bench import (
    Row,
    __main__,
    image,
    input_pipeline,
    number,
    parts,
    prune,
    quantity,
    startup,
    table,
)
from tools.bench.__main__ import NAMES


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
    monkeypatch.setattr(image, "NEEDED", 1e18)
    assert image.main("v100", tmp_path) == 1
    assert "1000000000 GB are needed" in capsys.readouterr().err


def test_a_folder_that_is_not_there_and_ctrl_c_under_nohup_end_a_bench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "image", "--folder", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="2"):
        __main__.main()
    assert "none: there is no such folder; make it" in capsys.readouterr().err
    stopped = SimpleNamespace(main=lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setitem(sys.modules, "tools.bench.startup", stopped)
    monkeypatch.setattr(sys, "argv", ["bench", "startup"])
    before = [(each, signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup starts a program
        with pytest.raises(SystemExit, match="130"):
            __main__.main()
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def test_rows_that_depend_on_the_network_say_so() -> None:
    taken = {"ours": image.Taken({"every target": 9.0}), "theirs": image.Taken()}
    shown = table(image.rows(taken))
    for what in ("cold build (network) ", "every target cold, against one (network) ", "proof  "):
        assert f"| {what}" in shown
    del taken["ours"].values["every target"]
    assert "every target" not in table(image.rows(taken))


def test_the_parts_of_a_command_are_all_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ticks = parts.Clock(), iter(range(9))
    inner = clock.timed("inner", lambda: None)
    with monkeypatch.context() as fake:
        fake.setattr("time.thread_time", lambda: next(ticks))
        clock.timed("outer", inner)()
    assert dict(clock.spent) == {"inner": 1, "outer": 2}, "the inner part does not count twice"
    result = tmp_path / "parts.json"
    bench.command(sys.executable, "-m", "tools.bench.parts", result, "list", cwd=ROOT)
    taken = json.loads(result.read_text())
    assert 0 < sum(taken["spent"].values()) <= 2 * (os.cpu_count() or 1) * taken["wall"]
    taken["spans"] = [("pack torch", 1.0, 90.0), ("pack six", 2.0, 2.5)]
    shown = parts.table({**taken, "wall": 100.0}, 40.0, 2)
    assert "| engine: take, unpack, hash | 40.0 | 20% |" in shown
    assert "1.0 s to   90.0 s  pack torch" in shown and "pack six" not in shown
    assert parts.tree_seconds(os.getpid()) > 0


def test_the_variants_of_prune_share_what_they_leave_alone() -> None:
    bases = prune.variants(ROOT, image_yaml.load(ROOT, "v100-torch"))
    assert list(bases) == ["off", "torch", "all"]
    keys = {mode: {layer.plan.name: layer.plan.key for layer in base.wheels}
            for mode, base in bases.items()}  # fmt: skip
    other = {
        mode: {name.split()[0] for name in keys["off"] if keys["off"][name] != keys[mode][name]}
        for mode in ("torch", "all")
    }
    assert other["torch"] == {"torch"} < other["all"]
    assert {"nvidia-cudnn-cu12", "nvidia-nccl-cu12"} < other["all"]
    assert not {"triton", "12"} & other["all"]
    layers = layers_lock.of(ROOT).layers
    assert prune.total(bases["torch"], layers, packed=True) > 3e9


def test_the_program_that_times_rendering_still_renders() -> None:
    program = startup.RENDER.replace(f"1 + {startup.WARM}", "1")
    assert len(json.loads(bench.command(sys.executable, "-c", program, ROOT, cwd=ROOT))) == 1


@pytest.mark.parametrize(("load", "verdicts"), [(0.0, 1), (64.0, 0)])
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


@pytest.mark.parametrize("name", NAMES)
def test_a_bench_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"tools.bench.{name}").main)
