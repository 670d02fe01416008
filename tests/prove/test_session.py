"""A container that prints without an end is stopped in time, and holds no memory of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.engine import Engine
from builder.prove.judge import Run
from builder.prove.session import HOOK, JOB, Limits, Sandbox
from builder.prove.smoke import RECORDS

pytestmark = pytest.mark.engine


@pytest.fixture
def sandbox(engine: Engine, context: Callable[..., Path]) -> Iterator[Sandbox]:
    """A sandbox of busybox, with a second of time and a megabyte to print."""
    folder = context('ENTRYPOINT ["/bin/busybox"]\n')
    image, _ = engine.client.images.build(path=str(folder), rm=True)
    limits = dataclasses.replace(Limits(), output=2**20)
    with Sandbox(engine.client, image, limits=limits) as made:
        yield made
    engine.client.images.remove(str(image.id), force=True)


def test_one_that_prints_without_a_pause_is_stopped_at_its_limit(sandbox: Sandbox) -> None:
    run = sandbox.start(["yes", "x" * 1000], seconds=60)
    assert run.flooded and not run.timed_out and run.exit_code == 137
    assert sum(map(len, sandbox.log)) < 2 * sandbox.limits.output


def test_one_that_prints_slowly_without_an_end_is_stopped_by_the_clock(sandbox: Sandbox) -> None:
    every = "while true; do echo x; usleep 1000; done"
    run = sandbox.start(["sh", "-c", every], seconds=1)
    assert run.timed_out and not run.flooded and run.exit_code == 137


def test_a_line_without_an_end_is_cut(sandbox: Sandbox) -> None:
    run = sandbox.start(["dd", "if=/dev/zero", "bs=1M", "count=100"], seconds=60)
    assert run.flooded
    assert max(map(len, sandbox.log)) <= 2**16


def test_the_engine_keeps_no_log_of_it(sandbox: Sandbox) -> None:
    with sandbox.container(["true"], {}) as container:
        container.reload()
        assert container.attrs["HostConfig"]["LogConfig"]["Type"] == "none"


def test_one_that_fills_its_disk_is_stopped(engine: Engine, context: Callable[..., Path]) -> None:
    """To the job folder, and to a volume that its image declares."""
    folder = context('VOLUME /data\nENTRYPOINT ["/bin/busybox"]\n')
    image, _ = engine.client.images.build(path=str(folder), rm=True)
    limits = dataclasses.replace(Limits(), disk=2**20)
    try:
        with Sandbox(engine.client, image, limits=limits) as sandbox:
            sandbox.fill(RECORDS)
            for place in (JOB, "/data"):
                fill = f"while true; do dd if=/dev/zero of={place}/$((i=i+1)) bs=1M count=1; done"
                run = sandbox.start(["sh", "-c", f"i=0; {fill} 2>/dev/null"], seconds=60)
                assert run.filled and not run.timed_out and run.exit_code == 137
            spent = {each.what: each for each in sandbox.ledger.rows}
    finally:
        engine.client.images.remove(str(image.id), force=True)
    disk = spent["bytes in a container's volumes"]
    assert disk.used > disk.limit == 2**20
    assert 0 < spent["seconds of a container"].used < 60


def test_a_probe_whose_answer_the_engine_lost_is_asked_again(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.fill(RECORDS)
    for runs, code, answer in (
        ([Run(0, 1.0), Run(0, 1.0, answer={"seen": 1})], 0, {"seen": 1}),
        ([Run(0, 1.0), Run(0, 1.0)], 0, None),
        ([Run(1, 1.0)], 1, None),
    ):
        left = iter(runs)
        monkeypatch.setattr(sandbox, "_run", lambda *_, left=left: next(left))
        run = sandbox.probe("builder.prove.probes.imports", {})
        assert (run.exit_code, run.answer, list(left)) == (code, answer, [])


def test_a_jobs_variables_are_there_but_none_that_brings_an_accelerator(sandbox: Sandbox) -> None:
    given = {"XLA_FLAGS": "--a", "PYTHONPATH": "/own", "NVIDIA_VISIBLE_DEVICES": "all"}
    hook = "builder.frameworks.hook"
    sandbox.fill(RECORDS)
    ours = {"mpirun": b"#!/bin/sh\necho ours $*\n"}
    run = sandbox.start_with(
        hook, "REQUEST", {"batch": 1}, ["env"], environment=given, programs=ours
    )
    variables = {"XLA_FLAGS=--a", f"PYTHONPATH={HOOK}:/own", "NVIDIA_VISIBLE_DEVICES=void"}
    assert variables < set(run.tail)
    assert any(line.startswith(f"PATH={HOOK}/bin:/") for line in run.tail), "it is found first"
    run = sandbox.start_with(
        hook, "REQUEST", {}, ["env"], ["/usr/bin/mpirun", "-np", "2"], programs=ours
    )
    assert "ours -np 2 env" in run.tail, "also where the image names it by a path"
