"""Every option of a run: its default, its help, its bounds, and which options exclude each other.

The command line wins over the environment, the environment over the defaults. Needs no TensorFlow,
so a mistake on the command line is answered at once.
"""

import argparse
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer import guard
from trainer.options import Section, read, whole_number
from trainer.options import UsageError as UsageError

WEIGHTS_FILES = (".h5", ".keras")
"""How the names of weights files end."""
UNKNOWN = 2**62
"""Steps of a run with --epochs, or without a length, until its records are counted."""

_OF_EACH = ("precision", "recall", "f1", "auc")
METRICS_OF = {
    "class": ("accuracy", "loss", "top5", *_OF_EACH, "calibration_error"),
    "labels": ("accuracy", "loss", *_OF_EACH, "exact_match", "average_precision"),
    "values": ("loss", "mae", "rmse", "r2"),
}
"""What an evaluation measures of each target; see trainer.model.scores."""
METRICS = {
    name: name not in ("loss", "calibration_error", "mae", "rmse")
    for names in METRICS_OF.values()
    for name in names
}
"""All of them, and whether a larger value is better."""


def some_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Return what makes names of a list like final,best, or of none."""

    def names(text: str) -> tuple[str, ...]:
        chosen = () if text == "none" else tuple(text.split(","))
        if unknown := [name for name in chosen if name not in known]:
            told = f"{unknown[0]!r} is not one of {', '.join(known)}, none"
            raise argparse.ArgumentTypeError(told)
        return chosen

    return names


def layer_count(text: str) -> int:
    """Return a number of layers; of "all" -1."""
    count = -1 if text == "all" else whole_number(text)
    if count < 0 and text != "all":
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return count


def jitter(text: str) -> tuple[float, ...]:
    """Return B[,C,S[,H]] as four numbers: brightness, contrast, saturation, hue; () of 0."""
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) == 1:
        numbers *= 3
    numbers = (*numbers, 0.0)[:4] if len(numbers) == 3 else numbers
    if len(numbers) != 4 or not all(0 <= n <= 1 for n in numbers) or numbers[3] > 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is not B or B,C,S[,H] from 0 to 1, H to 0.5")
    return numbers if any(numbers) else ()


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def cadence(text: str) -> int | str:
    """Return a number of steps, or a time as it is written: 90s, 10m, 2h."""
    if text[-1:] not in _UNITS:
        return whole_number(text)
    try:
        fine = 0 < seconds(text) < float("inf")
    except ValueError:
        fine = False
    if not fine:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 2h")
    return text


def seconds(text: str) -> float:
    """Return the seconds of a time that `cadence` takes."""
    return float(text[:-1]) * _UNITS[text[-1]]


def first_and_last(text: str) -> tuple[int, int]:
    """Return the two steps of FIRST,LAST."""
    first, comma, last = text.partition(",")
    if not (comma and first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST, two steps from 1 on")
    return int(first), int(last)


_run = Section("the run")
_distribution = Section("distribution")
_evaluation = Section("train and evaluate")
_model = Section("model")
_optimizer = Section("optimizer")
_tensorboard = Section("TensorBoard")
_input = Section("input and augmentation")
_output = Section("hyperparameters and output")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Holds everything that a run depends on. Folders may be local paths or gs:// URLs."""

    records: str = _run(
        ...,
        "folder of train-*.tfrecord, validation-*.tfrecord and labels.txt",
        metavar="DIR",
    )
    job_dir: str = _run(
        "",
        "folder for everything the run writes; AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and "
        "AIP_TENSORBOARD_LOG_DIR count for what they name (default: the parent of AIP_MODEL_DIR)",
        metavar="DIR",
    )
    model_dir: str
    """Of the final SavedModel: AIP_MODEL_DIR or JOB_DIR/model."""
    checkpoint_dir: str
    """AIP_CHECKPOINT_DIR or JOB_DIR/checkpoints."""
    log_dir: str
    """For TensorBoard: AIP_TENSORBOARD_LOG_DIR or JOB_DIR/logs."""
    steps: int = _run(
        UNKNOWN,
        "optimizer steps of the whole run, those before a restart included",
        shown="by the records",
        least=1,
    )
    epochs: float = _run(
        0.0, "passes over the training records, in place of --steps; 0: not given", most=1e6
    )
    batch_size: int = _run(
        32, "examples a step, all replicas", alias="--batch", shown="by the devices", least=1
    )
    learning_rate: float = _run(
        0.002,
        "after the warm-up, before any decay",
        shown="by weights, optimizer, batch",
        least=1e-30,
    )
    image_size: int = _run(
        0,
        "pixels a side: every image becomes such a square; 0: as the model was made for, "
        "small_cnn by the records",
    )
    checkpoint_every: int | str = _run(
        "10m",
        "steps between checkpoints, or time: 90s, 10m, 2h",
        parse=cadence,
        least=1,
        shown="10m, with --deterministic 100 steps",
    )
    keep_checkpoints: int = _run(3, "number of newest checkpoints to keep", least=1)
    evaluate_every: int = _run(
        0, "steps between evaluations; 0: one at the end only", shown="a tenth of the run"
    )
    steps_per_loop: int = _run(
        10, "most steps before the host looks at the loss, signals and the clock", least=1
    )
    seed: int = _run(0, "of initial weights, order and augmentation", most=2**32 - 1)
    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = _run(
        "auto", "auto: by the device"
    )
    deterministic: bool = _run(False, "the same bits in every run, for some speed")

    strategy: Literal["auto", "one", "mirrored", "multiworker", "tpu", "ps"] = _distribution(
        "auto", "auto: by TF_CONFIG, CLUSTER_SPEC and the devices"
    )
    accelerator: str = _distribution(
        guard.AUTO,
        "what has to be here, or nothing is trained: V100:2, GPU, TPU; none: train on the CPU; "
        f"auto: what {guard.VARIABLE} says",
    )
    peer_timeout: float = _distribution(
        600.0, "seconds to wait for another rank, at the start and in a step", least=1
    )
    grace: float = _distribution(
        25.0, "most seconds from SIGTERM until the process exits, saved or not", least=0.5
    )

    evaluate_batches: int = _evaluation(
        0, "most batches of each evaluation, the last one too; 0: all records once"
    )
    early_stopping: int = _evaluation(
        0, "end the run after this many evaluations without a better --metric; 0: never"
    )
    evaluate_crop: float = _evaluation(
        0.0,
        "evaluate and serve the central square of each picture, with this share of its shorter "
        "side; 0: the whole picture, each side scaled on its own",
        most=1,
    )
    predictions: bool = _evaluation(
        False, "write JOB_DIR/predictions.csv at the end: a line for each validation record"
    )
    export: tuple[str, ...] = _evaluation(
        ("final",),
        "SavedModels to write, some of final,best,latest, or none; best and latest go to "
        "JOB_DIR/export after an evaluation",
        parse=some_of("final", "best", "latest"),
        shown="final",
    )

    model: str = _model(
        "small_cnn",
        "small_cnn, a name of keras.applications, or package.module:function, "
        "which returns a Keras model",
    )
    weights: str = _model(
        "none",
        "none, imagenet, a file (.h5, .keras), or a folder of checkpoints",
    )
    fine_tune_layers: int = _model(
        -1,
        "weight layers of the backbone to train, counted from its end; 0: the head only",
        parse=layer_count,
        metavar="N",
        shown="all",
        least=-1,
    )
    batch_norm: Literal["auto", "frozen", "trained", "synchronized"] = _model(
        "auto",
        "auto: frozen where the backbone's weights are given; synchronized: trained, with the "
        "statistics of all replicas' pictures",
    )
    drop_path: float = _model(
        0.0,
        "stochastic depth: the share of pictures that skip the last block, less for earlier ones; "
        "0: as Keras makes the network",
        most=0.9,
    )
    target: str = ""
    """What is predicted of an example: see trainer.input.targets. The records say it."""
    dropout: float = _model(0.0, "share of the features dropped before the logits", most=0.99)
    class_weights: Literal["none", "balanced"] = _model(
        "none", "balanced: in the loss, each class counts alike, however many examples it has"
    )
    label_smoothing: float = _model(
        0.0, "share of each label that is spread over all classes", most=0.99
    )

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop", "lamb", "lion"] = _optimizer(
        "adam", "sgd has Nesterov momentum"
    )
    momentum: float = _optimizer(0.9, "of sgd and rmsprop", most=0.9999)
    weight_decay: float = _optimizer(
        0.0,
        "decoupled from the gradient; spares biases and normalisation",
        most=1,
        shown="0, of adamw 0.004",
    )
    accumulate: int = _optimizer(
        1,
        "parts in which each replica's batch goes through the model, to need less memory",
        least=1,
    )
    clip_norm: float = _optimizer(
        0.0, "most that the norm of all gradients together may be; 0: no limit"
    )
    ema: float = _optimizer(
        0.0,
        "share of the moving average of weights and statistics that each step keeps, less in the "
        "first steps; evaluation and export use it; not with parameter servers; 0: no average",
        most=0.999999,
    )
    schedule: Literal["constant", "cosine", "step"] = _optimizer(
        "constant", "of the learning rate", shown="cosine"
    )
    warmup_steps: int = _optimizer(
        0,
        "steps in which the learning rate rises from 0, linearly",
        shown="of cosine a twentieth of the run",
    )
    xla: bool = _optimizer(
        False, "compile the gradients with XLA, on one replica; a TPU always does"
    )

    profile_steps: tuple[int, int] | None = _tensorboard(
        None, "first and last step to profile", parse=first_and_last, metavar="FIRST,LAST"
    )
    summaries: tuple[str, ...] = _tensorboard(
        (),
        "what it shows beside scalars, some of graph,histograms,images, or none; histograms are of "
        "weights and activations, with the shares of dead ones, and made after an evaluation",
        parse=some_of("graph", "histograms", "images"),
        shown="none",
    )

    accept_changed_records: bool = _input(
        False, "go on with a job whose records are not those that it began with"
    )
    feature_image: str = _input(
        "image/encoded", "feature of the encoded picture in records of another tool"
    )
    feature_label: str = _input(
        "",
        "feature of the class, or of values, in records of another tool",
        shown="image/class/label, image/class/labels or image/values",
    )
    first_label: int = _input(0, "the label of the first line of labels.txt")
    compression: Literal["none", "gzip"] = _input(
        "none", "of the files; gzip: they are unpacked to a temporary folder first"
    )
    on_corrupt: Literal["fail", "skip"] = _input("fail", "what a record that cannot be read does")
    crop: float = _input(
        1.0, "least share of a picture's area that is seen; 1: all of it", least=0.01, most=1
    )
    cut: bool = _input(
        False, "see a random square of --image-size pixels as stored: a crop without resizing"
    )
    flip: Literal["none", "horizontal", "vertical", "both"] = _input("none", "at random")
    turn: bool = _input(False, "by 0, 90, 180 or 270 degrees at random")
    color_jitter: tuple[float, ...] = _input(
        (),
        "random factors in 1 +- B of brightness, C of contrast, S of saturation, each B if it is "
        "alone; H: most share of the colour circle to shift by",
        parse=jitter,
        metavar="B[,C,S[,H]]",
        shown="none",
    )
    erase: float = _input(
        0.0, "share of the area that is made grey, in half of the pictures", most=0.9
    )
    mixup: float = _input(
        0.0, "alpha of mixup: pairs of pictures are blended, and their labels; 0: never", most=100
    )
    cutmix: float = _input(
        0.0, "alpha of cutmix: a rectangle comes from another picture; 0: never", most=100
    )

    trivial_augment: bool = _input(
        False, "one change a picture, of fourteen, at random and with random strength"
    )
    rand_augment: int = _input(
        0, "changes a picture, of the same fourteen, all of one strength; 0: none", most=10
    )
    cache: Literal["none", "memory"] = _input(
        "none", "memory: keep decoded pictures, so that each is decoded once"
    )
    sampling: Literal["natural", "balanced"] = _input(
        "natural", "balanced: an epoch has each picture of a rare class several times"
    )

    metric: str = _output(
        "accuracy",
        "what a trial reports, and what better and best mean; with values: loss",
        choices=tuple(METRICS),
    )
    output: Literal["auto", "json", "text"] = _output("auto", "auto: text on a terminal, else JSON")


COMMON = (
    *("records", "job_dir", "model", "image_size", "weights", "fine_tune_layers"),
    *("steps", "epochs", "batch_size", "learning_rate", "optimizer", "schedule", "weight_decay"),
    *("crop", "flip", "trivial_augment", "mixup", "evaluate_every", "metric", "seed"),
)
"""The options that --help shows; --help-all shows every one."""
_WHAT = """Train a classifier of pictures on TFRecords. The run resumes from the newest
whole checkpoint of its job folder; a job that is done is left alone. As tuning services write
them, options may have underscores for hyphens, and a value after = or a space. Of an option that is
given twice, the last one counts."""
_CODES = """Exit codes: 0 done, 1 a fault of the program, 2 what was given cannot be right, 3 a
folder could not be written, 4 the loss was not finite, 143 stopped: start it again."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Return the run that these arguments and Vertex AI's AIP_* variables ask for.

    AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR win over the folders below
    --job-dir. Raises UsageError.
    """
    usage = "python -m trainer.task --records DIR [--job-dir DIR] [option ...]"
    given = read(Config, arguments, COMMON, usage=usage, description=_WHAT, epilog=_CODES)
    if given.get("epochs"):
        if "steps" in given:
            raise UsageError("--steps and --epochs: give one of them")
        given["steps"] = UNKNOWN
    given["accelerator"] = _accelerator(given.get("accelerator", guard.AUTO), environment)
    config = Config(**{**given, **_folders(given, environment)})
    check(config)
    return config


def check(config: Config) -> None:
    """Refuse options that exclude each other. Raises UsageError."""
    if 0 < config.image_size < 8:
        raise UsageError(f"--image-size {config.image_size}: must be 8 or more, or 0")
    if config.cut and config.crop < 1:
        raise UsageError(f"--cut and --crop {config.crop}: give one of them")
    if config.trivial_augment and config.rand_augment:
        raise UsageError(f"--trivial-augment and --rand-augment {config.rand_augment}: give one")
    if config.weights == "imagenet" and config.model.lower() == "small_cnn":
        raise UsageError("--weights imagenet: there are none for small_cnn; give a --model")
    own, weights = ":" in config.model, config.weights
    if own and config.dropout:
        raise UsageError(f"--dropout {config.dropout}: --model {config.model} makes its own head")
    if own and (weights == "imagenet" or weights.endswith(WEIGHTS_FILES)):
        raise UsageError(f"--weights {weights}: --model {config.model} loads its own")
    check_length(config)


def given(arguments: Sequence[str]) -> frozenset[str]:
    """Return the fields that `arguments`, which `parse` has read, give a value to; by --epochs also
    steps. Zeros that mean "not given" do not count."""
    values = read(Config, arguments, COMMON)
    zeros = ("image_size", "epochs")
    names = frozenset(name for name, value in values.items() if value or name not in zeros)
    return names | {"steps"} if "epochs" in names else names


def choose_backend(environment: MutableMapping[str, str]) -> None:
    """Have Keras run on TensorFlow. Raises UsageError if the environment names another backend."""
    backend = environment.setdefault("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise UsageError(f"KERAS_BACKEND={backend}: the trainer runs on TensorFlow: unset it")


def _accelerator(given: str, environment: Mapping[str, str]) -> str:
    """Return --accelerator, or the environment's for `auto`. Raises UsageError."""
    source, text = "--accelerator", given
    if given == guard.AUTO:
        source, text = guard.VARIABLE, environment.get(guard.VARIABLE, "").strip() or guard.AUTO
    try:
        guard.expected(text, source)
    except guard.Refused as error:
        raise UsageError(str(error)) from None
    return text


def _folders(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the four folders that a run writes to. Raises UsageError."""
    job_dir: str = given.get("job_dir", "")
    aip_model = environment.get("AIP_MODEL_DIR", "")
    trial = environment.get("CLOUD_ML_TRIAL_ID")
    if not job_dir:
        job_dir = aip_model.rstrip("/").rpartition("/")[0]  # each trial has its own already
    elif trial:
        job_dir = f"{job_dir.rstrip('/')}/{trial}"
    if not job_dir:
        raise UsageError("no folder to write to: give --job-dir or set AIP_MODEL_DIR")
    job_dir = job_dir.rstrip("/") or "/"

    def folder(variable: str, name: str) -> str:
        return (environment.get(variable) or f"{job_dir}/{name}").rstrip("/")

    return {
        "job_dir": job_dir,
        "model_dir": folder("AIP_MODEL_DIR", "model"),
        "checkpoint_dir": folder("AIP_CHECKPOINT_DIR", "checkpoints"),
        "log_dir": folder("AIP_TENSORBOARD_LOG_DIR", "logs"),
    }


def check_length(config: Config) -> None:
    """Refuse what `config.steps` steps are too few for. Raises UsageError."""
    if config.warmup_steps and config.warmup_steps >= config.steps:
        text = f"the run of {config.steps} steps is over before its end"
        raise UsageError(f"--warmup-steps {config.warmup_steps}: {text}")
    if config.profile_steps and config.profile_steps[0] > config.steps:
        first, last = config.profile_steps
        text = f"the run of {config.steps} steps is over before the first"
        raise UsageError(f"--profile-steps {first},{last}: {text}")


def sized(config: Config, records: int) -> Config:
    """Return `config` with --epochs as steps.

    Raises UsageError if the run is too short for another option.
    """
    if config.epochs:
        steps = max(1, round(config.epochs * records / config.batch_size))
        config = replace(config, steps=steps)
    check_length(config)
    return config
