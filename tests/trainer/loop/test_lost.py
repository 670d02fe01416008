"""What is lost in the middle of a run: told by what it is, with the exit code for a service.

The texts are those of TensorFlow in public threads; TensorFlow itself is made to raise them.
"""

import json
import time
from pathlib import Path

import pytest

from tests.trainer.runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer import config, task  # noqa: E402
from trainer.job import checkpoints  # noqa: E402
from trainer.loop import distribution, inner, lost  # noqa: E402

PLACE = "/job:localhost/replica:0/task:0/device"
TEXTS = [
    (  # https://github.com/tensorflow/models/issues/5527
        "ResourceExhaustedError",
        f"OOM when allocating tensor with shape[64,2016,9,9] and type float on {PLACE}:GPU:0 by "
        "allocator GPU_0_bfc",
        "the GPU's memory",
        2,
    ),
    (  # https://github.com/NVIDIA/DeepLearningExamples/issues/405
        "ResourceExhaustedError",
        "Out of memory while trying to allocate 68852648264 bytes.",
        "the GPU's memory",
        2,
    ),
    (  # https://github.com/tensorflow/tensorflow/issues/45238
        "ResourceExhaustedError",
        f"OOM when allocating tensor with shape[1,416,416,3] and type float on {PLACE}:CPU:0 by "
        "allocator cpu",
        "the machine's memory",
        2,
    ),
    (  # https://github.com/nagadit/DeepFaceLab_Linux/issues/89
        "InternalError",
        "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC "
        "error encountered",
        "the GPU failed",
        143,
    ),
    (  # https://github.com/tensorflow/tensorflow/issues/28693, solved by another video card
        "InternalError",
        "failed to query event: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "the GPU failed",
        143,
    ),
    (  # https://github.com/tensorflow/tensorflow/issues/51760
        "InternalError",
        "unhandled system error\n\t [[node cond/CollectiveReduceV2]]\nNCCL WARN Call to "
        "ibv_create_qp failed",
        "the GPUs no longer talk",
        143,
    ),
    (  # https://github.com/tensorflow/tensorflow/issues/59890
        "InternalError",
        "NCCL: unhandled cuda error. Set NCCL_DEBUG=WARN for detail.",
        "the GPUs no longer talk",
        143,
    ),
    # What is the program's or the data's fault stays one.
    (  # https://github.com/tensorflow/tensorflow/issues/59671: a fault of kernels
        "InternalError",
        "failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was "
        "encountered",
        None,
        1,
    ),
    ("InternalError", "cuDNN launch failure : input shape ([32,1,1,256])", None, 1),
    ("InvalidArgumentError", "required broadcastable shapes, out of memory of the index", None, 1),
]


@pytest.mark.parametrize(("kind", "text", "says", "code"), TEXTS)
def test_what_ended_a_step_is_told(
    kind: str, text: str, says: str | None, code: int, tmp_path: Path
) -> None:
    error = getattr(tf.errors, kind)(None, None, text)
    loss = lost.of(error)
    assert loss.text.startswith(says) if says else loss is None
    given = config.parse([f"--records={SMOKE}", f"--job-dir={tmp_path}"], {})
    ended, said = task._verdict(error, given, distribution.Cluster())
    assert ended == code
    assert loss is None or said.startswith(loss.text)


@pytest.mark.parametrize(("kind", "text", "code"), [(*TEXTS[0][:2], 2), (*TEXTS[3][:2], 143)])
def test_the_checkpoint_that_is_being_written_is_not_lost(
    kind: str, text: str, code: int, tmp_path: Path, task: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes one step after the snapshot, and the disk is slow."""
    error = getattr(tf.errors, kind)(None, None, text)
    train, save = inner.Trainer.train, checkpoints.Checkpoints.save
    made = []

    def trained(self: inner.Trainer, batches: object, count: int) -> object:
        made.append(count)
        if sum(made) > 2:
            raise error
        return train(self, batches, count)

    def slowly(self: checkpoints.Checkpoints, *given: object) -> str:
        time.sleep(0.5)
        return save(self, *given)

    def exits(ended: int) -> None:
        raise SystemExit(ended)

    monkeypatch.setattr(inner.Trainer, "train", trained)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", slowly)
    monkeypatch.setattr("os._exit", exits)
    options = ("--steps", 4, "--checkpoint-every", 2, "--image-size", 8)
    given = ("--records", SMOKE, "--job-dir", tmp_path, *options)
    try:
        ended, lines = task(*given)  # type: ignore[operator]
    except SystemExit as exit_:
        ended, lines = exit_.code, []
    assert ended == code
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.json")] == [
        "step-00000002.json"
    ]
    assert (tmp_path / "FAILED").exists() == (code == 2), "a run that starts again has not failed"
    if lines:
        assert json.loads((tmp_path / "FAILED").read_text())["code"] == 2
        assert "smaller --batch-size" in lines[-1]["message"]
