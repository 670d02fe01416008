"""The configuration of a run: command line over environment over defaults, checked once.

Needs no TensorFlow, so a mistake on the command line is answered at once.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

PRECISIONS = ("auto", "float32", "mixed_float16", "mixed_bfloat16")
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "lamb", "lion")
SCHEDULES = ("constant", "cosine", "step")
STRATEGIES = ("auto", "one", "mirrored", "multiworker", "tpu", "ps")
EXPORTS = ("final", "best", "latest")
METRICS = ("accuracy", "loss")
"""What an evaluation measures."""
WEIGHTS_FILES = (".h5", ".keras")
"""How the names of weights files end."""


UNKNOWN = 2**62
"""Steps of a run of so many epochs, until its records are counted."""


class UsageError(Exception):
    """What the user gave cannot be right: one line, exit code 2."""


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on. Folders may be local paths or gs:// URLs."""

    records: str
    """Folder of train-*.tfrecord, validation-*.tfrecord and labels.txt."""
    job_dir: str
    model_dir: str
    checkpoint_dir: str
    log_dir: str
    steps: int
    """Optimizer steps of the whole run, those before a restart included."""
    batch_size: int
    """Examples a step over all replicas."""
    learning_rate: float
    image_size: int
    """Pixels; every image is resized to a square of this side."""
    checkpoint_every: int
    """Steps."""
    keep_checkpoints: int
    evaluate_every: int
    """Steps; 0: only at the end."""
    steps_per_loop: int
    """Steps between two looks of the host at loss, signals and clock."""
    seed: int
    precision: str
    deterministic: bool

    # Distribution (trainer/loop/distribution.py)
    strategy: str
    """auto: by TF_CONFIG, CLUSTER_SPEC and the devices."""
    replica_batch_size: int
    """Examples a step on each replica, in place of batch_size; 0: batch_size counts."""
    peer_timeout: float
    """Seconds that a rank waits for another, when it starts and in a step."""
    grace: float
    """Seconds after SIGTERM at which the process leaves, saved or not."""
    # Train and evaluate (trainer/loop/outer.py, trainer/loop/evaluator.py, trainer/loop/judge.py)
    epochs: float
    """In place of steps; 0: steps count."""
    checkpoint_seconds: float
    """Seconds between two checkpoints, besides checkpoint_every; 0: steps alone."""
    keep_best: bool
    evaluation: str
    """inline, dedicated (a task of type evaluator), or auto: by the cluster."""
    evaluate_batches: int
    """Batches of an evaluation; 0: all records."""
    evaluate_delay: float
    """Seconds before the dedicated evaluator's first evaluation."""
    evaluate_interval: float
    """Least seconds between the beginnings of two evaluations."""
    early_stopping: int
    """Evaluations without a better --metric after which the run ends; 0: never."""
    early_stopping_delta: float
    """By how much better is better."""
    nan_retries: int
    """Times that a run goes back to its last checkpoint after a loss that is not finite."""
    nan_factor: float
    """Of the learning rate, at each of them."""
    export: tuple[str, ...]
    """SavedModels: final in model_dir; best and latest in JOB_DIR/export, after evaluations."""

    # Model (trainer/model/networks.py)
    model: str
    """small_cnn, or a name of keras.applications."""
    weights: str
    """none, imagenet, a weights file (.h5, .keras), or a folder of this trainer's checkpoints."""
    weights_sha256: str
    """Of the weights file, in hex; empty: not checked, only told."""
    reuse_head: bool
    """Take the head from the checkpoint, too: its classes are the same."""
    fine_tune_layers: int
    """Weight layers of the backbone that are trained, from its end; -1: all."""
    batch_norm: str
    pooling: str
    head_units: int
    """Of a hidden layer before the logits; 0: none."""
    dropout: float
    l2: float
    label_smoothing: float
    # Optimizer
    optimizer: str
    momentum: float
    weight_decay: float
    clip_norm: float
    """Of all gradients together; 0: as they are."""
    schedule: str
    warmup_steps: int
    decay_at: tuple[float, ...]
    """Shares of the run after which the step schedule multiplies by decay_factor."""
    decay_factor: float
    final_learning_rate: float
    """What is left at the end of the cosine schedule, as a share of the learning rate."""
    learning_rate_scaling: str
    """By the replicas: none, linear, sqrt."""
    xla: str
    # TensorBoard (trainer/observe/summaries.py); cadences in steps, 0: never
    scalars_every: int
    histograms_every: int
    activations_every: int
    examples: int
    """Misclassified examples shown after an evaluation; 0: no pictures."""
    graph: bool
    summary_budget: float
    """Share of the wall clock that histograms and activations may cost before they are skipped."""
    profile_steps: tuple[int, int] | None
    """First and last step of a profile."""
    # Utilisation and cost (trainer/observe/utilization.py, trainer/observe/ledger.py)
    sample_every: float
    """Seconds between two looks at processors and memory; 0: none."""
    price_per_hour: float
    """Of all the machines of the run together, in any currency; 0: not known."""
    # Input (trainer/input/data.py) and augmentation (trainer/input/augment.py says what each means)
    on_corrupt: str
    """What a record that cannot be read does: fail, or skip."""
    crop: float
    crop_ratio: float
    cut: bool
    flip: str
    turn: bool
    brightness: float
    contrast: float
    saturation: float
    hue: float
    erase: float
    # Of sounds (trainer/input/spectrograms.py, trainer/input/augment.py)
    seconds: float
    """What is heard of each; 0: as the records say."""
    rate: int
    """Samples a second; 0: as the records say. In a run that has begun, 0: they have pictures."""
    shift: float
    noise: float
    # Hyperparameters and output (trainer/observe/hypertune.py, trainer/report.py)
    metric: str
    """The tag under which a trial's metric is reported: a metric of the evaluation."""
    output: str


_WHAT = """Train a classifier of pictures or sounds on TFRecords. Goes on by itself from the newest
whole checkpoint of the job folder; a job that is done is left alone. Options may have underscores
for hyphens, and their value after = or a space, as tuning services write them; of two, the last
counts."""
_CODES = """Exit codes: 0 done, 1 a fault of the program, 2 what was given cannot be right, 3 a
folder could not be written, 4 the loss was not finite, 143 stopped: start it again."""


class _Help(argparse.HelpFormatter):
    """Says what each option is if it is not given, and what kind of value it takes."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default in ("", argparse.SUPPRESS) or "default" in text:
            return text
        if isinstance(default, bool):
            default = str(default).lower()
        elif isinstance(default, float):
            default = f"{default:g}"
        return f"{text} (default: {default})"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kinds = {_integer: "N", _whole: "N", _layers: "N", float: "X", _switch: "true|false"}
        return kinds.get(action.type, action.dest.rpartition("_")[2].upper())


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing several lines and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help lists the options)")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """The run that these arguments and Vertex AI's AIP_* variables ask for.

    An option of its own wins over AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR,
    and these win over the folders below --job-dir. Raises UsageError.
    """
    parser = _Parser(
        usage="python -m trainer.task --records DIR [--job-dir DIR] [option ...]",
        description=_WHAT,
        epilog=_CODES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    section = lambda title: parser.add_argument_group(title).add_argument  # noqa: E731
    add = section("the run")
    add("--records", required=True, metavar="DIR", help="folder of TFRecords and labels.txt")
    add(
        "--job-dir",
        metavar="DIR",
        help="folder of everything the run writes (default: beside AIP_MODEL_DIR)",
    )
    add("--model-dir", metavar="DIR", help="SavedModel (default: AIP_MODEL_DIR or JOB_DIR/model)")
    add(
        "--checkpoint-dir",
        metavar="DIR",
        help="default: AIP_CHECKPOINT_DIR or JOB_DIR/checkpoints",
    )
    add(
        "--log-dir",
        metavar="DIR",
        help="TensorBoard (default: AIP_TENSORBOARD_LOG_DIR or JOB_DIR/logs)",
    )
    add("--steps", type=_integer, help="optimizer steps of the whole run (default: 1000)")
    add("--epochs", type=float, default=0.0, help="in place of --steps; 0: no")
    add("--batch-size", "--batch", type=_integer, default=32, help="examples a step, all replicas")
    add("--learning-rate", type=float, default=0.002, help="after warm-up, before any decay")
    add("--image-size", type=_integer, default=32, help="pixels a side")
    add("--checkpoint-every", type=_integer, default=100, help="steps")
    add("--keep-checkpoints", type=_integer, default=3, help="the last so many")
    add("--evaluate-every", type=_integer, default=0, help="steps; 0: only at the end")
    add("--steps-per-loop", type=_integer, default=10, help="at most, between two looks around")
    add("--seed", type=_integer, default=0, help="of weights, order and augmentation")
    add("--precision", choices=PRECISIONS, default="auto", help="auto: by the device")
    add(
        "--deterministic",
        type=_switch,
        nargs="?",
        const=True,
        default=False,
        help="same bits each time, for some speed",
    )
    add = section("distribution")
    add("--strategy", choices=STRATEGIES, default="auto", help="auto: by environment and devices")
    add("--replica-batch-size", type=_whole, default=0, help="in place of --batch-size; 0: no")
    add("--peer-timeout", type=float, default=600.0, help="seconds to wait for another rank")
    add("--grace", type=float, default=25.0, help="seconds from SIGTERM to leaving, at the latest")
    add = section("train and evaluate")
    add("--checkpoint-seconds", type=float, default=0.0, help="besides --checkpoint-every")
    add("--keep-best", type=_switch, nargs="?", const=True, default=True, help="by --metric")
    add(
        "--evaluation",
        choices=("auto", "inline", "dedicated"),
        default="auto",
        help="by the trainers or an evaluator; auto: by the cluster",
    )
    add("--evaluate-batches", type=_whole, default=0, help="0: all validation records")
    add("--evaluate-delay", type=float, default=0.0, help="seconds; dedicated evaluator")
    add("--evaluate-interval", type=float, default=0.0, help="least seconds between evaluations")
    add("--early-stopping", type=_whole, default=0, help="evaluations without a better --metric")
    add("--early-stopping-delta", type=float, default=0.0, help="by how much better is better")
    add("--nan-retries", type=_whole, default=2, help="back to the last checkpoint, smaller rate")
    add("--nan-factor", type=float, default=0.5, help="of the learning rate, at each retry")
    add("--export", type=_exports, default="final", help="some of final,best,latest; or none")
    add = section("model")
    add("--model", default="small_cnn", help="small_cnn, or a name of keras.applications")
    add(
        "--weights",
        default="none",
        help="none, imagenet, a file (.h5, .keras), or a folder of this trainer's checkpoints",
    )
    add("--weights-sha256", default="", help="what the weights file has to be")
    add("--reuse-head", type=_switch, nargs="?", const=True, default=False, help="same classes")
    add(
        "--fine-tune-layers",
        type=_layers,
        default=-1,
        help="weight layers of the backbone that are trained, from its end; all (default), 0: head",
    )
    add(
        "--batch-norm",
        choices=("auto", "frozen", "trained"),
        default="auto",
        help="auto: frozen where the backbone's weights are given",
    )
    add("--pooling", choices=("avg", "max"), default="avg", help="of the backbone's features")
    add("--head-units", type=_whole, default=0, help="of a hidden layer before the logits")
    add("--dropout", type=float, default=0.0, help="share, before the logits")
    add("--l2", type=float, default=0.0, help="times the squared kernels, added to the loss")
    add("--label-smoothing", type=float, default=0.0, help="share of the label given to all")
    add = section("optimizer")
    add("--optimizer", choices=OPTIMIZERS, default="adam", help="sgd: with Nesterov momentum")
    add("--momentum", type=float, default=0.9, help="sgd and rmsprop")
    add("--weight-decay", type=float, default=0.0, help="decoupled; not of biases and norms")
    add("--clip-norm", type=float, default=0.0, help="of all gradients together; 0: as they are")
    add("--schedule", choices=SCHEDULES, default="constant", help="of the learning rate")
    add("--warmup-steps", type=_whole, default=0, help="linear from 0")
    add(
        "--decay-at",
        type=_shares,
        default="0.5,0.75",
        metavar="X,X",
        help="step: shares of the run",
    )
    add("--decay-factor", type=float, default=0.1, help="step: at each of them")
    add("--final-learning-rate", type=float, default=0.0, help="cosine: share left at the end")
    add(
        "--learning-rate-scaling",
        choices=("none", "linear", "sqrt"),
        default="none",
        help="by the number of replicas",
    )
    add("--xla", choices=("auto", "on", "off"), default="auto", help="auto: on a TPU")
    add = section("TensorBoard; cadences in steps, 0: never")
    add("--scalars-every", type=_whole, default=1, help="loss, rate, norm, speed")
    add("--histograms-every", type=_whole, default=500, help="of weights")
    add("--activations-every", type=_whole, default=500, help="with zeros, dead and saturated")
    add("--examples", type=_whole, default=8, help="misclassified, as pictures; 0: none")
    add("--graph", type=_switch, nargs="?", const=True, default=True, help="the model, once")
    add(
        "--summary-budget",
        type=float,
        default=0.05,
        help="share of the time that histograms and activations may cost before they are skipped",
    )
    add("--profile-steps", type=_steps, metavar="FIRST,LAST", help="profile these steps")
    add = section("utilisation and cost")
    add("--sample-every", type=float, default=5.0, help="seconds; 0: no look at the machine")
    add("--price-per-hour", type=float, default=0.0, help="of all the run's machines together")
    add = section("input and augmentation")
    add("--on-corrupt", choices=("fail", "skip"), default="fail", help="records that are damaged")
    add("--crop", type=float, default=1.0, help="least share of the area that is seen; 1: all")
    add("--crop-ratio", type=float, default=4 / 3, help="of a crop's sides, at most")
    add(
        "--cut",
        type=_switch,
        nargs="?",
        const=True,
        default=False,
        help="see a random square of --image-size pixels, as stored: a crop without resizing",
    )
    add(
        "--flip",
        choices=("none", "horizontal", "vertical", "both"),
        default="none",
        help="at random",
    )
    add("--turn", type=_switch, nargs="?", const=True, default=False, help="by 0, 90, 180, 270")
    add("--brightness", type=float, default=0.0, help="factor in 1 +- this")
    add("--contrast", type=float, default=0.0, help="factor in 1 +- this")
    add("--saturation", type=float, default=0.0, help="factor in 1 +- this")
    add("--hue", type=float, default=0.0, help="share of the colour circle, either way")
    add("--erase", type=float, default=0.0, help="share of the area, in half of the pictures")
    add = section("sounds")
    add("--seconds", type=float, default=0.0, help="what is heard of each; 0: as the records say")
    add("--rate", type=_whole, default=0, help="samples a second; 0: as the records say")
    add("--shift", type=float, default=0.0, help="seconds earlier or later, at most")
    add("--noise", type=float, default=0.0, help="white, at most so strong as a share of the sound")
    add = section("hyperparameters and output")
    add("--metric", default="accuracy", help="what a trial reports: accuracy or loss")
    add("--output", choices=("auto", "json", "text"), default="auto", help="auto: by the terminal")
    given = vars(parser.parse_args(_hyphens(arguments)))

    aip_model = environment.get("AIP_MODEL_DIR")
    job_dir = given["job_dir"] or (aip_model and aip_model.rstrip("/").rpartition("/")[0])
    trial = environment.get("CLOUD_ML_TRIAL_ID")
    if trial and given["job_dir"]:  # the same for all trials, where AIP_MODEL_DIR is each one's
        job_dir = f"{given['job_dir'].rstrip('/')}/{trial}"
    if not job_dir:
        raise UsageError("where to write to is not known: give --job-dir or set AIP_MODEL_DIR")
    job_dir = job_dir.rstrip("/") or "/"
    for key, variable, name in (
        ("model_dir", "AIP_MODEL_DIR", "model"),
        ("checkpoint_dir", "AIP_CHECKPOINT_DIR", "checkpoints"),
        ("log_dir", "AIP_TENSORBOARD_LOG_DIR", "logs"),
    ):
        folder = given[key] or environment.get(variable) or f"{job_dir}/{name}"
        given[key] = folder.rstrip("/")

    if given["epochs"] and given["steps"] is not None:
        raise UsageError("--steps and --epochs: give one of them")
    if given["steps"] is None:
        given["steps"] = UNKNOWN if given["epochs"] else 1000
    for key, least in (
        ("steps", 1),
        ("batch_size", 1),
        ("image_size", 8),
        ("checkpoint_every", 1),
        ("keep_checkpoints", 1),
        ("evaluate_every", 0),
        ("steps_per_loop", 1),
        ("seed", 0),
    ):
        if given[key] < least:
            option = key.replace("_", "-")
            raise UsageError(f"--{option} {given[key]}: must be {least} or more")
    for key, low, high in (
        ("epochs", 0.0, math.inf),
        ("peer_timeout", 1.0, math.inf),
        ("grace", 0.5, math.inf),
        ("checkpoint_seconds", 0.0, math.inf),
        ("evaluate_delay", 0.0, math.inf),
        ("evaluate_interval", 0.0, math.inf),
        ("early_stopping_delta", 0.0, math.inf),
        ("nan_factor", 1e-6, 1.0),
        ("dropout", 0.0, 0.99),
        ("label_smoothing", 0.0, 0.99),
        ("l2", 0.0, 1.0),
        ("momentum", 0.0, 0.9999),
        ("weight_decay", 0.0, 1.0),
        ("clip_norm", 0.0, math.inf),
        ("decay_factor", 0.0, 1.0),
        ("final_learning_rate", 0.0, 1.0),
        ("summary_budget", 0.0, 1.0),
        ("sample_every", 0.0, math.inf),
        ("crop", 0.01, 1.0),
        ("crop_ratio", 1.0, 10.0),
        ("brightness", 0.0, 1.0),
        ("contrast", 0.0, 1.0),
        ("saturation", 0.0, 1.0),
        ("hue", 0.0, 0.5),
        ("erase", 0.0, 0.9),
        ("seconds", 0.0, 600.0),
        ("shift", 0.0, 600.0),
        ("noise", 0.0, 10.0),
        ("price_per_hour", 0.0, math.inf),
    ):
        if not low <= given[key] <= high:
            option = key.replace("_", "-")
            bounds = f"between {low:g} and {high:g}" if high < math.inf else f"{low:g} or more"
            raise UsageError(f"--{option} {given[key]:g}: must be {bounds}")
    if given["cut"] and given["crop"] < 1:
        raise UsageError(f"--cut and --crop {given['crop']}: one of the two")
    if given["metric"] not in METRICS:
        raise UsageError(f"--metric {given['metric']}: must be one of {', '.join(METRICS)}")
    given["weights_sha256"] = given["weights_sha256"].lower()
    _check_weights(given)
    if not (math.isfinite(given["learning_rate"]) and given["learning_rate"] > 0):
        raise UsageError(f"--learning-rate {given['learning_rate']}: must be more than 0")
    config = Config(**{**given, "job_dir": job_dir})
    check_length(config)
    return config


def check_length(config: Config) -> None:
    """Refuse what would never come about in `config.steps` steps. Raises UsageError."""
    if config.warmup_steps and config.warmup_steps >= config.steps:
        text = f"the run of {config.steps} steps is over before its end"
        raise UsageError(f"--warmup-steps {config.warmup_steps}: {text}")
    if config.profile_steps and config.profile_steps[0] > config.steps:
        first, last = config.profile_steps
        text = f"the run of {config.steps} steps is over before the first"
        raise UsageError(f"--profile-steps {first},{last}: {text}")


def _check_weights(given: Mapping[str, Any]) -> None:
    """What goes with --weights: nothing that was asked for is passed over in silence."""
    weights, checksum = given["weights"], given["weights_sha256"]
    file = weights.endswith(WEIGHTS_FILES)
    if weights == "imagenet" and given["model"].lower() == "small_cnn":
        raise UsageError("--weights imagenet: there are none for small_cnn; give a --model")
    if checksum and not file:
        ends = " or ".join(WEIGHTS_FILES)
        raise UsageError(f"--weights-sha256: --weights {weights} is no file ({ends})")
    if checksum and not re.fullmatch("[0-9a-f]{64}", checksum):
        raise UsageError(f"--weights-sha256 {checksum}: is not 64 hexadecimal digits")
    if given["reuse_head"] and (file or weights in ("none", "imagenet")):
        raise UsageError(
            f"--reuse-head: --weights {weights} has no head; give a folder of checkpoints"
        )


def _hyphens(arguments: Sequence[str]) -> list[str]:
    """--learning_rate=0.1 as --learning-rate=0.1: a tuning service names parameters that way."""
    hyphened = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        hyphened.append(f"{name}{equals}{value}")
    return hyphened


def _integer(text: str) -> int:
    """32.0, as a tuning service writes it, is 32."""
    try:
        value = float(text)
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")


def _whole(text: str) -> int:
    """0 or more; 32.0, as a tuning service writes it, is 32."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not (value >= 0 and value.is_integer()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(value)


def _switch(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of true, false") from None


def _exports(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    if unknown := [name for name in names if name not in EXPORTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(EXPORTS)}, none")
    return names


def _layers(text: str) -> int:
    return -1 if text == "all" else _whole(text)


def _shares(text: str) -> tuple[float, ...]:
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = (0.0,)
    if list(values) != sorted(values) or not all(0 < value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rising list of numbers from 0 to 1")
    return values


def _steps(text: str) -> tuple[int, int]:
    first, comma, last = text.partition(",")
    if not (comma and first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST, two steps from 1 on")
    return int(first), int(last)
