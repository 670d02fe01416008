"""The outputs probe: what a training run wrote, with TensorFlow reading it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.frameworks import written
from builder.frameworks.tensorflow.probes import outputs


class TestOutputs:
    """What a run left behind, with TensorFlow reading it."""

    @pytest.fixture(autouse=True)
    def as_in_an_image(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """TensorBoard with TensorFlow, which the factory itself leaves out of it."""
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
            monkeypatch.delitem(sys.modules, name)

    pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]  # noqa: RUF012

    @pytest.fixture
    def request_(self, tmp_path: Path) -> dict[str, Any]:
        records = Path(__file__).parents[3] / "builder/prove/records"
        (tmp_path / "job/checkpoints").mkdir(parents=True)
        return {"records": str(records), "job": str(tmp_path / "job")}

    def check(self, request: dict[str, Any], part: str) -> tuple[list[str], dict[str, Any]]:
        tf = pytest.importorskip("tensorflow")
        messages: list[str] = []
        function = getattr(outputs, f"check_{part}")
        seen = function(tf, request, lambda message, fix: messages.append(message))
        return messages, seen

    def events(self, request: dict[str, Any], losses: Sequence[float]) -> None:
        tf = pytest.importorskip("tensorflow")
        with tf.summary.create_file_writer(f"{request['job']}/logs/train").as_default():
            for step, loss in enumerate(losses):
                tf.summary.scalar("loss", loss, step)

    def test_nothing_was_written(self, request_: dict[str, Any]) -> None:
        for part, message in (
            ("model", "the trainer wrote no SavedModel"),
            ("events", f"no TensorBoard event in {request_['job']}/logs holds a loss (0 event"),
            ("checkpoints", "there is no checkpoint in"),
        ):
            assert self.check(request_, part)[0][0].startswith(message)
        (Path(request_["job"]) / "checkpoints/step-1.npz").write_bytes(b"PK\x03\x04 torn")
        assert "cannot be read" in self.check(request_, "checkpoints")[0][0]

    @pytest.mark.parametrize(
        ("classes", "message"),
        [(10, None), (3, "the SavedModel answers {'scores': [4, 3]} where the records have 10")],
    )
    def test_saved_model(self, request_: dict[str, Any], classes: int, message: str | None) -> None:
        tf = pytest.importorskip("tensorflow")

        class Model(tf.Module):  # type: ignore[misc]
            @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
            def serve(self, images: Any) -> Any:
                return {"scores": tf.ones([tf.shape(images)[0], classes])}

        model = Model()
        path = f"{request_['job']}/model"
        tf.saved_model.save(model, path, signatures={"serving_default": model.serve})
        messages, seen = self.check(request_, "model")
        assert [m[: len(message or "")] for m in messages] == ([message] if message else [])
        assert seen["outputs"] == {"scores": [4, classes]}

    def test_a_loss_has_to_fall_and_a_torn_file_is_read_as_far_as_it_goes(
        self, request_: dict[str, Any]
    ) -> None:
        self.events(request_, [2.0, 1.5, 1.0, 0.6, 0.3, 0.2])
        messages, seen = self.check(request_, "events")
        assert (messages, seen["points"], seen["tag"]) == ([], 6, "train/loss")
        (path,) = Path(request_["job"]).rglob("*tfevents*")
        path.write_bytes(path.read_bytes()[:-3])
        messages, seen = self.check(request_, "events")
        assert (messages, seen["points"]) == ([], 5)
        path.unlink()
        self.events(request_, [2.0, 2.1, 1.9, 2.0])
        assert self.check(request_, "events")[0][0].startswith("TensorBoard's train/loss does not")

    @pytest.mark.root
    def test_outputs_of_root(self, request_: dict[str, Any]) -> None:
        messages: list[str] = []
        written.owners(None, request_, lambda message, fix: messages.append(message))
        assert "belongs to uid 0" in messages[0]
