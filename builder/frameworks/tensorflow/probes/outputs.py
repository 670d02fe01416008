"""Can somebody use what a training run wrote? It runs after training, as the same user.

Request: {"records": folder, "job": folder}
The job folder holds `model` (SavedModel), `logs` (TensorBoard), `checkpoints`.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import importlib
import math
import os
from typing import TYPE_CHECKING, Any

from builder.frameworks import written

if TYPE_CHECKING:
    from builder.frameworks.written import Json, Wrong

IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF8")
FALLS_TO = 0.7


def pictures(tf: Any, folder: str, count: int) -> list[bytes]:
    """Return up to `count` encoded images of the records, whatever their feature is called."""
    images: list[bytes] = []
    for path in written.files(folder):
        if "tfrecord" not in os.path.basename(path) and not path.endswith(".tfrec"):
            continue
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            for feature in example.features.feature.values():
                images += [v for v in feature.bytes_list.value if v.startswith(IMAGES)][:1]
            if len(images) >= count:
                return images[:count]
    return images


def check_model(tf: Any, request: Json, wrong: Wrong) -> Json:
    """Check that the SavedModel answers each encoded image with one row of finite numbers."""
    folder = os.path.join(request["job"], "model")
    if not os.path.isfile(os.path.join(folder, "saved_model.pb")):
        wrong(
            f"the trainer wrote no SavedModel: there is no saved_model.pb in {folder}",
            "export the model to JOB_DIR/model before the trainer ends",
        )
        return {}
    images = pictures(tf, request["records"], 4)
    fix = "load it with tf.saved_model.load and call the signature, as a server would"
    try:
        signatures = tf.saved_model.load(folder).signatures
    except Exception as error:
        wrong(f"the SavedModel does not load: {written.line(error)}", fix)
        return {}
    named = {key: call.structured_input_signature[1] for key, call in signatures.items()}
    fitting = [
        key
        for key, inputs in named.items()
        if len(inputs) == 1 and next(iter(inputs.values())).dtype == tf.string
    ]
    if not fitting:
        wrong(
            "no signature of the SavedModel takes encoded images (there are: "
            f"{', '.join(signatures) or 'none'})",
            "export one with a single input of strings, shape [None]",
        )
        return {}
    name = fitting[0]
    try:
        answer = signatures[name](**{next(iter(named[name])): tf.constant(images)})
    except Exception as error:
        wrong(f"the SavedModel's {name} cannot predict: {written.line(error)}", fix)
        return {}
    numbers = {key: value for key, value in answer.items() if value.dtype.is_floating}
    shapes = {key: [int(size) for size in value.shape] for key, value in answer.items()}
    labels = _labels(request["records"])
    for key, value in numbers.items():
        if not bool(tf.reduce_all(tf.math.is_finite(value))):
            wrong(
                f"the SavedModel predicts numbers that are not finite ({key})",
                "look for the step where the loss stopped being finite",
            )
    widths = {shape[-1] if len(shape) > 1 else 1 for key, shape in shapes.items() if key in numbers}
    if not numbers or any(shape[:1] != [len(images)] for shape in shapes.values()):
        wrong(
            f"the SavedModel answers {len(images)} images with {shapes}",
            "let it answer one row of floats for each image",
        )
    elif labels and not widths & {len(labels), 1 if len(labels) == 2 else len(labels)}:
        wrong(
            f"the SavedModel answers {shapes} where the records have {len(labels)} classes",
            "give the last layer one output a class",
        )
    return {"signature": name, "outputs": shapes, "images": len(images), "classes": len(labels)}


def _labels(folder: str) -> list[str]:
    path = os.path.join(folder, "labels.txt")
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if line.strip()]


def check_events(tf: Any, request: Json, wrong: Wrong) -> Json:
    """Check that TensorBoard's files hold a loss, and that it falls."""
    folder = os.path.join(request["job"], "logs")
    event_files = [path for path in written.files(folder) if "tfevents" in os.path.basename(path)]
    series: dict[str, dict[int, float]] = {}
    for path in event_files:
        run = os.path.relpath(os.path.dirname(path), folder)
        try:
            for event in tf.compat.v1.train.summary_iterator(path):
                for value in event.summary.value:
                    if "loss" in value.tag:
                        number = value.simple_value
                        if value.HasField("tensor"):
                            number = float(tf.make_ndarray(value.tensor))
                        series.setdefault(f"{run}/{value.tag}", {})[event.step] = number
        except tf.errors.DataLossError:
            pass  # the killed run may have left half a record at the end of its file
    if not series:
        wrong(
            f"no TensorBoard event in {folder} holds a loss ({len(event_files)} event files)",
            "write the loss to JOB_DIR/logs with tf.summary.scalar",
        )
        return {}
    tag, values = max(series.items(), key=lambda item: len(item[1]))
    losses = [values[step] for step in sorted(values)]
    count = max(1, min(5, len(losses) // 2))
    first, last = sum(losses[:count]) / count, sum(losses[-count:]) / count
    if not all(map(math.isfinite, losses)):
        wrong(f"TensorBoard's {tag} is not finite", "look for the step where it stops being finite")
    elif len(losses) < 2 or last >= FALLS_TO * first:
        wrong(
            f"TensorBoard's {tag} does not fall: {first:.4g} at first, {last:.4g} at last "
            f"({len(losses)} points)",
            "write it every few steps, each with its step",
        )
    seen = {"files": len(event_files), "tag": tag, "points": len(losses)}
    return {**seen, "first": first, "last": last}


def check_checkpoints(tf: Any, request: Json, wrong: Wrong) -> Json:
    """Check that the newest checkpoint reads back. The resumed run has proven other formats."""
    numpy: Any = importlib.import_module("numpy")

    def read(path: str) -> int:
        if path.endswith(".index"):
            reader = tf.train.load_checkpoint(path[: -len(".index")])
            return len([reader.get_tensor(name) for name in reader.get_variable_to_shape_map()])
        if not path.endswith(".npz"):
            return 0
        with numpy.load(path, allow_pickle=False) as archive:
            arrays = [archive[name] for name in archive.files]
        if not all(numpy.isfinite(a).all() for a in arrays if a.dtype.kind == "f"):
            wrong(f"{path} holds numbers that are not finite", "see the loss")
        return len(arrays)

    known = (".npz", ".index")
    there = any(path.endswith(known) for path in written.files(request["job"]))
    return written.checkpoint(request, known if there else ("",), read, wrong)


QUESTIONS = {
    "model": check_model,
    "events": check_events,
    "checkpoints": check_checkpoints,
}


if __name__ == "__main__":
    written.run("tensorflow", QUESTIONS)
