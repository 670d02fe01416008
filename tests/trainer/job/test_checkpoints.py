"""Checkpoints are whole or not there."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.clock import replace_pauses
from trainer.job.checkpoints import Background, Checkpoints, Position, Spoiled, Torn, Unwritable
from trainer.job.lease import Lost

pytestmark = pytest.mark.tensorflow

VALUES = {"0000 conv/kernel": np.arange(6.0).reshape(2, 3), "0001 iteration": np.int64(7)}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(str(tmp_path / "checkpoints"), keep=2)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(Position(step, step * 32, step / 10), VALUES)


def test_what_was_saved_is_loaded(checkpoints: Checkpoints) -> None:
    save(checkpoints, 40)
    loaded = checkpoints.load(40)
    assert loaded.position == Position(step=40, examples=1280, epoch=4.0)
    assert loaded.variables.keys() == VALUES.keys()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(loaded.variables[name], value)


def test_the_newest_are_kept_and_nothing_else_lies_about(checkpoints: Checkpoints) -> None:
    assert checkpoints.steps() == []
    save(checkpoints, 20, 40, 100)
    assert checkpoints.steps() == [40, 100]
    assert len(list(Path(checkpoints.folder).iterdir())) == 4


DAMAGE = {
    "cut to nothing": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1],
    "zeros, which some file systems leave after a power cut": lambda content: bytes(200),
    "a flipped bit": lambda content: (
        content[: len(content) // 2]
        + bytes([content[len(content) // 2] ^ 1])
        + content[len(content) // 2 + 1 :]
    ),
    "other JSON": lambda content: b"[]",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_one_that_is_damaged_is_seen(checkpoints: Checkpoints, damage: str, suffix: str) -> None:
    save(checkpoints, 20)
    path = Path(checkpoints.folder) / f"step-00000020.{suffix}"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    what = "bytes do not have the checksum of the " if suffix == "npz" else r"step-00000020\.npz"
    with pytest.raises(Torn, match=what):
        checkpoints.load(20)


def test_one_that_is_not_whole_is_passed_over_and_removed_if_asked(
    checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    save(checkpoints, 20, 40)
    Path(checkpoints.folder, "step-00000040.npz").write_bytes(b"half")
    for remove, left in ((False, [20, 40]), (True, [20])):
        newest = checkpoints.newest(remove)
        assert newest is not None and newest.position.step == 20
        assert checkpoints.steps() == left
        assert "skipped a checkpoint that is not whole: " in capsys.readouterr().out


def test_arrays_without_a_marker_do_not_count_and_are_swept(checkpoints: Checkpoints) -> None:
    save(checkpoints, 20, 40)
    folder = Path(checkpoints.folder)
    (folder / "step-00000040.json").unlink()
    (folder / "step-00000060.npz.tmp-123").write_bytes(b"half")
    assert checkpoints.steps() == [20]
    checkpoints.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000020.json",
        "step-00000020.npz",
    ]


def test_snapshots_are_written_one_after_the_other_behind_training(
    checkpoints: Checkpoints,
) -> None:
    background = Background(checkpoints)
    for step in (20, 40, 60):
        tensors = {"0000 w": tf.constant([float(step)])}
        background.save(Position(step, step * 32, 0.0), tensors, {"stopwatch": {"seconds": step}})
    assert [step for step, _ in background.done(wait=True)] == [20, 40, 60]
    assert background.done(wait=True) == []
    loaded = checkpoints.load(60)
    np.testing.assert_array_equal(loaded.variables["0000 w"], [60.0])
    assert loaded.state == {"stopwatch": {"seconds": 60}}


def test_a_snapshot_keeps_its_values_while_training_changes_the_variables(
    checkpoints: Checkpoints,
) -> None:
    """A snapshot is free because TensorFlow does not overwrite a value that is held elsewhere."""
    variables = [tf.Variable(tf.ones(1000)), tf.Variable(tf.zeros([], tf.int64))]
    snapshot = tf.function(lambda: [tf.identity(variable) for variable in variables])()
    for variable in variables:
        variable.assign_add(tf.ones_like(variable))
    accumulator = tf.Variable(tf.zeros(1000))
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variables[0].handle, accum=accumulator.handle, lr=1.0, grad=tf.ones(1000), momentum=0.9
    )
    assert [float(tf.reduce_sum(tensor)) for tensor in snapshot] == [1000, 0]
    assert [float(tf.reduce_sum(variable)) for variable in variables] == [1000, 1]


def test_values_that_are_not_finite_are_not_saved(checkpoints: Checkpoints) -> None:
    background = Background(checkpoints)
    background.save(Position(20), {"0000 w": tf.constant([1.0, np.nan])}, {})
    with pytest.raises(Spoiled, match="0000 w is not finite after step 20"):
        background.done(wait=True)
    background.save(Position(40), {"0000 w": tf.constant([1.0])}, {})
    assert [step for step, _ in background.done(wait=True)] == [40]
    assert checkpoints.steps() == [40]


def test_a_folder_that_cannot_be_written_any_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    replace_pauses(monkeypatch, lambda _: None)
    background = Background(Checkpoints(str(tmp_path / "file/checkpoints"), keep=2))
    background.save(Position(20), {"0000 w": tf.constant([1.0])}, {})
    with pytest.raises(Unwritable, match=f"step 20 could not be written to {tmp_path}/file"):
        background.done(wait=True)


def test_a_write_that_hangs_does_not_keep_the_process_from_its_end(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    thaws = threading.Event()
    monkeypatch.setattr(Checkpoints, "save", lambda *_: thaws.wait(60))
    background = Background(checkpoints)
    before = threading.enumerate()
    background.save(Position(20), {"0000 w": tf.constant([1.0])}, {})
    [writes] = set(threading.enumerate()).difference(before)
    background.wait(0.1)
    assert writes.is_alive() and writes.daemon, "Python waits for every other thread"
    thaws.set()
    writes.join()


def test_a_run_that_lost_its_folder_commits_nothing(checkpoints: Checkpoints) -> None:
    def lost() -> None:
        raise Lost("another run")

    background = Background(checkpoints, allowed=lost)
    background.save(Position(20), {"0000 w": tf.constant([1.0])}, {})
    with pytest.raises(Lost):
        background.done(wait=True)
    assert checkpoints.steps() == []


def test_the_best_one_is_a_copy_of_its_own(checkpoints: Checkpoints) -> None:
    best = Checkpoints(f"{checkpoints.folder}/best", keep=1)
    for step in (20, 40, 60, 80):
        save(checkpoints, step)
        if step in (20, 40):
            checkpoints.copy(step, best.folder)
    assert checkpoints.steps() == [60, 80]
    assert best.steps() == [40]
    assert best.load(40).variables.keys() == VALUES.keys()


def test_what_is_there_counts_as_room_for_what_replaces_it(checkpoints: Checkpoints) -> None:
    assert checkpoints.size() == 0
    save(checkpoints, 20, 40)
    checkpoints.copy(40, f"{checkpoints.folder}/best")
    Path(checkpoints.folder, "something-else").write_bytes(bytes(1000))
    both = list(Path(checkpoints.folder).rglob("step-*"))
    assert len(both) == 6
    assert checkpoints.size() == sum(path.stat().st_size for path in both)
