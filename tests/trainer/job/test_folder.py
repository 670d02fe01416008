"""One run at a time on a folder, what is asked of it, and the marker of a job that is done."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from trainer.config import Config, UsageError, parse
from trainer.job import markers, storage
from trainer.job.lease import Lease, Lost

pytestmark = pytest.mark.tensorflow


def test_a_second_run_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = (Lease(str(tmp_path)) for _ in range(2))
    first.take()
    with pytest.raises(UsageError, match=r"another run \(process \d+ on .*\) is at work in"):
        second.take()
    first.check()
    first.release()
    second.take()
    second.check()
    second.release()


def test_a_folder_is_written_to_and_measured_before_a_run_starts(tmp_path: Path) -> None:
    storage.check_writable(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"cannot write to {tmp_path}/file/below: "):
        storage.check_writable(str(tmp_path / "file/below"))
    storage.check_space(str(tmp_path / "not/there/yet"), 1000, "2 checkpoints")
    assert (storage.size(310_000), storage.size(12_400_000)) == ("310 kB", "12.4 MB")
    with pytest.raises(UsageError, match=r"MB free, 2 checkpoints need 1,000,000,000,000.0 MB"):
        storage.check_space(str(tmp_path / "not/there/yet"), 10**18, "2 checkpoints")


def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path: Path) -> None:
    first = Lease(str(tmp_path / "job"))
    first.take()
    shutil.rmtree(tmp_path / "job")
    first.check()
    with pytest.raises(UsageError, match="another run"):
        Lease(str(tmp_path / "job")).take()


def test_a_run_whose_folder_was_removed_and_is_another_s_now_is_told(tmp_path: Path) -> None:
    first, second = (Lease(str(tmp_path / "job")) for _ in range(2))
    first.take()
    (tmp_path / "job/run.lock").unlink()
    second.take()
    with pytest.raises(Lost, match=r"run\.lock was removed, and now another run \(process"):
        first.check()
    second.check()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "job/DONE"), "No space left on device"),
        (tf.errors.ResourceExhaustedError(None, None, "job/DONE; No space left on device"), "DONE"),
        (
            tf.errors.ResourceExhaustedError(
                None,
                None,
                "{{function_node a_b/job:w/task:0}} job/m; No space left on device [Op:S]",
            ),
            "job/m; No space left on device",
        ),
        (tf.errors.FailedPreconditionError(None, None, "job; Read-only file system"), "Read-only"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), ""),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), ""),
        (KeyError("a"), ""),
    ],
)
def test_a_full_disk_is_told_from_a_fault_of_the_program(error: Exception, says: str) -> None:
    found = storage.unwritable(error)
    assert says in found
    assert "function_node" not in found
    assert "[Op" not in found
    assert bool(found) is bool(says)


def config(job: object, *options: object) -> Config:
    return parse(["--records", "r", "--job-dir", str(job), *map(str, options)], {})


@pytest.mark.parametrize(
    ("done", "options", "finished"),
    [
        ({"step": 100}, ("--steps", 100), True),
        ({"step": 100, "asked": 100}, ("--steps", 101), False),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 100), True),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 101), False),
        ({"step": 30, "asked": 100, "early": True}, ("--steps", 20), True),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--epochs", 3), True),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--epochs", 4), False),
        ({"step": 30, "asked": 90, "epochs": 3.0, "early": True}, ("--epochs", 3), True),
        ({"step": 90, "asked": 90, "epochs": 0.0}, ("--epochs", 3), False),
        ({"step": 90, "asked": 90, "epochs": 3.0}, ("--steps", 90), True),
    ],
)
def test_done_holds_for_the_length_it_was_asked_for(
    tmp_path: Path, done: dict, options: tuple, finished: bool
) -> None:
    assert markers.finished(config(tmp_path, *options)) is None
    (tmp_path / "DONE").write_text(json.dumps(done))
    found = markers.finished(config(tmp_path, *options))
    assert found == (done if finished else None)
