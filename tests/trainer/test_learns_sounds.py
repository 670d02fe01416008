"""Sounds, from files to a SavedModel that classifies files; and TensorBoard's audio."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.runs import Task

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
soundfile = pytest.importorskip("soundfile")

from tensorboard.backend.event_processing import data_provider  # noqa: E402
from tensorboard.backend.event_processing.plugin_event_multiplexer import (  # noqa: E402
    EventMultiplexer,
)
from tensorboard.context import RequestContext  # noqa: E402
from tensorboard.plugins import base_plugin  # noqa: E402
from tensorboard.plugins.audio import audio_plugin, metadata  # noqa: E402

from trainer import task  # noqa: E402
from trainer.config import parse  # noqa: E402
from trainer.input import augment, data, spectrograms, splits  # noqa: E402
from trainer.input.parts import Sound  # noqa: E402
from trainer.records import command, tfrecord  # noqa: E402

RATE = 8000
QUIET = ["--examples=0", "--histograms-every=0"]
QUIET += ["--export=none"]
KINDS = ("falling", "rising", "steady", "warbling")
STEPS, EVERY = 160, 80


def sound(kind: str, random: np.random.Generator) -> np.ndarray:
    """A third of a second of a tone that rises, falls and so on, at a random pitch, with noise."""
    time = np.arange(RATE // 3) / RATE
    low, high = sorted(random.uniform(300, 3000, 2) + np.array([0, 400]))
    course = {
        "rising": np.linspace(low, high, len(time)),
        "falling": np.linspace(high, low, len(time)),
        "steady": np.full(len(time), low),
        "warbling": low + 150 * np.sin(2 * np.pi * 12 * time),
    }[kind]
    phase = 2 * np.pi * np.cumsum(course) / RATE
    loud = random.uniform(0.05, 0.8)
    return loud * (np.sin(phase) + random.normal(0, 0.05, len(time)))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounds") / "clips"
    random = np.random.default_rng(0)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for number in range(60):
            path = folder / kind / f"{number}.{('wav', 'flac')[number % 2]}"
            soundfile.write(path, sound(kind, random), RATE)
    return folder


@pytest.fixture(scope="module")
def made(clips: Path) -> Path:
    out = clips.parent / "records"
    with contextlib.redirect_stdout(io.StringIO()):
        options = ["--rate", str(RATE), "--validation", "0.25", "--workers", "1"]
        assert command.main([str(clips), str(out), *options]) == 0
    return out


@pytest.fixture(scope="module")
def job(made: Path) -> tuple[Path, list[dict]]:
    """A run and its event lines."""
    folder = made.parent / "job"
    options = {"steps": STEPS, "evaluate-every": EVERY, "steps-per-loop": 40}
    options |= {"schedule": "cosine", "learning-rate": 0.004, "shift": 0.02, "erase": 0.05}
    options |= {"noise": 0.05, "histograms-every": EVERY}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert task.main(["--records", str(made), "--job-dir", str(folder), *arguments]) == 0
    return folder, [json.loads(line) for line in output.getvalue().splitlines()]


def test_it_learns(job: tuple[Path, list[dict]]) -> None:
    evaluated = [line for line in job[1] if line["event"] == "evaluated"][-1]
    assert evaluated["examples"] == 60
    assert evaluated["accuracy"] >= 0.9
    config = json.loads((job[0] / "config.json").read_text())
    assert (config["rate"], config["seconds"]) == (RATE, pytest.approx(1 / 3, abs=1e-3))


# The SavedModel


def held_out(made: Path) -> list[tuple[bytes, int]]:
    found = []
    for path in sorted(made.glob("validation-*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tfrecord.features(record)
            found.append((features["audio/encoded"], features["audio/class/label"]))
    return found


def test_files_samples_and_tensors_give_what_evaluation_gave(
    made: Path, job: tuple[Path, list[dict]], tmp_path: Path
) -> None:
    wavs, labels = zip(*held_out(made), strict=True)
    form = Sound(RATE, json.loads((made / "dataset.json").read_text())["form"]["seconds"])
    shards = splits.find(str(made), "validation")
    context = tf.distribute.InputContext()
    batches = data.evaluation(shards, context, batch_size=60, image_size=32, classes=4)
    images, evaluated, _ = next(batches.as_numpy_iterator())
    assert evaluated.tolist() == list(labels)
    signatures = tf.saved_model.load(str(job[0] / "model")).signatures
    pieces = tf.stack([spectrograms.piece(wav, form) for wav in wavs])
    by = {
        "tensors": signatures["tensors"](images=images),
        "samples": signatures["samples"](samples=pieces),
        "files": signatures["serving_default"](audio_bytes=tf.constant(wavs)),
    }
    expected = by["tensors"]["probabilities"].numpy()
    for found in by.values():
        np.testing.assert_array_equal(found["probabilities"].numpy(), expected)
    told = [line for line in job[1] if line["event"] == "evaluated"][-1]["accuracy"]
    assert np.mean(expected.argmax(axis=1) == labels) == pytest.approx(told)

    plain = "import sys, json, tensorflow as tf; f = tf.saved_model.load(sys.argv[1]).signatures"
    plain += "['serving_default'](audio_bytes=tf.constant([open(sys.argv[2], 'rb').read()]));"
    plain += "print(json.dumps([f['probabilities'].numpy()[0].tolist(), f['label'].numpy()[0]"
    plain += ".decode()])); assert 'trainer' not in sys.modules"
    (tmp_path / "0.wav").write_bytes(wavs[0])
    command = [sys.executable, "-I", "-c", plain, str(job[0] / "model"), str(tmp_path / "0.wav")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    probabilities, label = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(probabilities, expected[0], rtol=1e-5, atol=1e-9)
    assert label == KINDS[int(expected[0].argmax())]


def test_a_file_of_another_rate_is_refused_by_the_server(job: tuple[Path, list[dict]]) -> None:
    serve = tf.saved_model.load(str(job[0] / "model")).signatures["serving_default"]
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(4000), 16000, format="WAV")
    with pytest.raises(tf.errors.InvalidArgumentError, match="not at 8000 samples a second"):
        serve(audio_bytes=tf.constant([buffer.getvalue()]))


# TensorBoard


def test_tensorboard_plays_what_was_heard_beside_its_pictures(
    made: Path, job: tuple[Path, list[dict]]
) -> None:
    multiplexer = EventMultiplexer(size_guidance={"tensors": 0})
    multiplexer.AddRunsFromDirectory(str(job[0] / "logs"))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(job[0] / "logs"))
    context = RequestContext()

    def series(plugin: str) -> dict[str, Any]:
        found = provider.list_blob_sequences(context, experiment_id="", plugin_name=plugin)
        return found["validation"]

    def blobs(plugin: str, tag: str) -> dict[int, list[bytes]]:
        found = provider.read_blob_sequences(
            context, experiment_id="", plugin_name=plugin, downsample=100
        )["validation"][tag]
        return {
            one.step: [provider.read_blob(context, blob_key=blob.blob_key) for blob in one.values]
            for one in found
        }

    tags = series(metadata.PLUGIN_NAME)
    assert {f"recognised/{number}" for number in range(1, 9)} <= set(tags)
    page = audio_plugin.AudioPlugin(base_plugin.TBContext(data_provider=provider))
    index = page._index_impl(context, "")
    assert {run: set(found) for run, found in index.items()} == {"validation": set(tags)}
    for tag in tags:
        assert index["validation"][tag]["samples"] == 1
        cards = page._audio_response_for_run(context, "", "validation", tag, 0)
        assert {card["contentType"] for card in cards} == {"audio/wav"}
        assert {card["step"] for card in cards} <= {EVERY, STEPS}
    (table,) = [
        event
        for event in provider.read_tensors(
            context, experiment_id="", plugin_name="text", downsample=100
        )["validation"]["sounds"]
        if event.step == STEPS
    ]
    rows = [row.split("|") for row in table.numpy[0].decode().splitlines()[2:]]
    said = {row[1].strip(): (row[2].strip(), row[3].strip()) for row in rows}
    heard_of = {wav: KINDS[label] for wav, label in held_out(made)}
    form = Sound(RATE, json.loads((made / "dataset.json").read_text())["form"]["seconds"])
    clips = {spectrograms.clip(wav, form): label for wav, label in heard_of.items()}
    for tag, (true, taken) in said.items():
        (wav,) = blobs(metadata.PLUGIN_NAME, tag)[STEPS]
        assert clips[wav] == true
        assert (true == taken) == tag.startswith("recognised/")
    # The pictures are the same in number and order; the first two blobs are width and height.
    shown = blobs("images", "recognised")[STEPS]
    right = [tag for tag in said if tag.startswith("recognised/")]
    assert right == [f"recognised/{number}" for number in range(1, 9)]
    assert len(shown) - 2 == len(right)
    assert {said[tag][0] for tag in right[:4]} == set(KINDS), "each class has its turn"
    first = tf.io.decode_png(shown[2]).numpy()[:128, :, :]
    (wav,) = blobs(metadata.PLUGIN_NAME, "recognised/1")[STEPS]
    seen = spectrograms.seen(wav, form, 32).numpy()
    assert (first[::4, ::4] == seen).all(), "the picture above the caption is of that very sound"


# Reading


def test_what_is_drawn_is_the_same_after_a_restart(made: Path) -> None:
    shards = splits.find(str(made), "train", Sound(0, 0.2))
    config = parse(["--records", "-", "--job-dir", "-", "--noise", "0.2", "--shift", "0.1"], {})

    def batches(consumed: int, count: int, augmentation: augment.Augmentation) -> list[Any]:
        found = data.training(
            shards,
            tf.distribute.InputContext(),
            batch_size=20,
            image_size=16,
            classes=4,
            seed=3,
            consumed=consumed,
            augmentation=augmentation,
        )
        return [images for images, _ in found.take(count).as_numpy_iterator()]

    for augmentation in (augment.NONE, augment.of(config)):
        whole = batches(0, 13, augmentation)
        taken_up = batches(160, 5, augmentation)
        assert all((one == other).all() for one, other in zip(whole[8:], taken_up, strict=True))
        assert whole[0].dtype == np.uint8
        # With 180 records, the tenth batch is the second epoch's first: other parts of the sounds.
        again = {image.tobytes() for image in np.concatenate(whole[9:])}
        assert not again & {image.tobytes() for image in np.concatenate(whole[:4])}


def test_records_of_others_have_their_rate_and_need_to_be_told_how_much_is_heard(
    made: Path, tmp_path: Path
) -> None:
    for path in made.iterdir():
        if path.name != "dataset.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(data.UsageError, match=r"no dataset.json.*give --seconds"):
        splits.find(str(tmp_path), "train")
    (first, *_) = splits.find(str(tmp_path), "train", Sound(0, 0.25))
    assert first.sound == Sound(RATE, 0.25)
    with pytest.raises(data.UsageError, match=r"--rate 16000: the sounds of .* have 8000 a second"):
        splits.find(str(tmp_path), "train", Sound(16000, 0.25))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--flip", "horizontal"), "--flip horizontal is of pictures"),
        (("--turn",), "--turn is of pictures"),
        (("--cut",), "--cut is of pictures"),
        (("--crop", "0.5"), "--crop 0.5 is of pictures"),
        (("--color-jitter", "0.1"), "--color-jitter .* is of pictures"),
    ],
)
def test_what_makes_no_sense_with_sounds_is_refused(
    made: Path, option: tuple[str, ...], said: str
) -> None:
    config = parse(["--records", str(made), "--job-dir", "-", *option], {})
    shards, _ = splits.of(config, 4)
    with pytest.raises(data.UsageError, match=f"{said}.*has sounds.*--shift, --noise and --erase"):
        splits.heard(config, shards)


def test_a_damaged_sound_is_named_or_skipped(made: Path, tmp_path: Path, task: Task) -> None:
    bad = tmp_path / "records"
    bad.mkdir()
    for path in made.iterdir():
        (bad / path.name).write_bytes(path.read_bytes())
    first = min(bad.glob("train-*"))
    for content in (b"RIFF and no more", (bad / "dataset.json").read_bytes()[:60]):
        record = {"audio/encoded": content, "audio/class/label": 1}
        first.write_bytes(first.read_bytes() + tfrecord.frame(tfrecord.example(record)))
    options = ("--records", bad, "--batch", 16, "--steps", 12, *QUIET)
    code, lines = task(*options, "--job-dir", tmp_path / "one")
    assert code == 2
    assert f"{first}: record" in lines[-1]["message"]
    code, lines = task(*options, "--job-dir", tmp_path / "two", "--on-corrupt", "skip")
    assert code == 0
    skipped = [line["message"] for line in lines if line["event"] == "corrupt"]
    assert len(skipped) == 3
    assert skipped[-1].startswith("2 train records or parts of files skipped, 180 left")
