"""Checkpoints that are whole or not there."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from trainer.checkpoints import Checkpoints, Position, Torn  # noqa: E402

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


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_one_that_was_cut_short_is_seen(checkpoints: Checkpoints, keep: float, suffix: str) -> None:
    save(checkpoints, 20)
    path = Path(checkpoints.folder) / f"step-00000020.{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(Torn, match=r"step-00000020\.npz"):
        checkpoints.load(20)


def test_a_flipped_bit_is_seen(checkpoints: Checkpoints) -> None:
    save(checkpoints, 20)
    path = Path(checkpoints.folder) / "step-00000020.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Torn):
        checkpoints.load(20)


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
