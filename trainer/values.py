"""What a few options can be, and how their texts become values; the others are by their type."""

import argparse

from trainer.options import whole_number

METRICS = {
    "accuracy": True,
    "loss": False,
    "top5": True,
    "precision": True,
    "recall": True,
    "f1": True,
    "auc": True,
    "calibration_error": False,
    "exact_match": True,
    "average_precision": True,
    "mae": False,
    "rmse": False,
    "r2": True,
}
"""What an evaluation measures, and whether a larger value is better; see trainer.model.scores."""
METRICS_OF = {
    "class": tuple(METRICS)[:8],
    "labels": (
        *("accuracy", "loss", "precision", "recall", "f1", "auc"),
        *("exact_match", "average_precision"),
    ),
    "values": ("loss", "mae", "rmse", "r2"),
}
"""Those that there are of each target."""
EXPORTS = ("final", "best", "latest")


def exports(text: str) -> tuple[str, ...]:
    """Return which SavedModels final,best,latest, or none mean."""
    names = () if text == "none" else tuple(text.split(","))
    if unknown := [name for name in names if name not in EXPORTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(EXPORTS)}, none")
    return names


def layers(text: str) -> int:
    """Return a number of layers; of "all" -1."""
    return -1 if text == "all" else from_0(text)


def from_0(text: str) -> int:
    """Return a whole number of 0 or more."""
    value = whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return value


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


def steps(text: str) -> tuple[int, int]:
    """Return the two steps of FIRST,LAST."""
    first, comma, last = text.partition(",")
    if not (comma and first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST,LAST, two steps from 1 on")
    return int(first), int(last)
