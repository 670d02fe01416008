"""The study of a job's file: what it varies, and how it searches."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.core.filemodel import invalid, matches
from builder.jobs.description.values import Number, Text, WrittenModel, is_number

_WHOLE = re.compile(r"[+-]?[0-9]+")
Kind = Literal["double", "integer", "discrete", "categorical"]


class Parameter(WrittenModel):
    """One parameter that a study varies: a range (min, max) or values."""

    min: Number | None = Field(None, examples=["0.0001"])
    """The least value; 1.0 where the values between are not whole."""

    max: Number | None = Field(None, examples=["0.1"])
    """The largest value."""

    values: tuple[Text, ...] | None = Field(None, min_length=1, examples=[["16", "32", "64"]])
    """The values to choose from: numbers, or words."""

    scale: Literal["linear", "log"] = Field("linear", examples=["log"])
    """How the range is searched."""

    @property
    def kind(self) -> Kind:
        """Return what the values look like: whole min and max are integers."""
        if self.values is not None:
            return "discrete" if all(map(is_number, self.values)) else "categorical"
        whole = all(map(_WHOLE.fullmatch, (self.min or "", self.max or "")))
        return "integer" if whole else "double"

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        low, high = self.min, self.max
        if (low is None) != (high is None) or (low is None) == (self.values is None):
            raise invalid("needs min and max, or values", "write {min: 0.001, max: 0.1}")
        numbers = self.values if self.values is not None else (low or "", high or "")
        if self.kind == "categorical":
            if not numbers or self.scale != "linear":
                raise invalid("words are a list without a scale", "write values: [a, b]")
            return self
        if self.values is None and float(numbers[0]) >= float(numbers[1]):
            raise invalid(f"min {low} is not below max {high}", "write the smaller one as min")
        if self.scale == "log" and min(map(float, numbers)) <= 0:
            raise invalid("a log scale needs values above 0", "write scale: linear")
        return self


class Study(WrittenModel):
    """A hyperparameter study: the job is run once for each trial, with other arguments."""

    metric: Annotated[
        str, matches(r"[A-Za-z][\w./-]*", "a metric's name", "write the name that is reported")
    ] = Field(examples=["validation_accuracy"])
    """The name under which the trainer reports the result."""

    goal: Literal["maximize", "minimize"] = Field("maximize", examples=["maximize"])
    """Whether a larger or a smaller value is better."""

    trials: int = Field(10, ge=1, le=1000, examples=[20])
    """How many trials."""

    parallel: int = Field(1, ge=1, le=100, examples=[2])
    """How many run at once. With fewer, each trial learns from more earlier ones."""

    algorithm: Literal["bayesian", "random", "grid"] = Field("bayesian", examples=["random"])
    """How the next trial is chosen."""

    max_failed: int = Field(0, ge=0, le=1000, examples=[3])
    """How many trials may fail before the study fails; 0: the service decides."""

    early_stopping: Literal["none", "median", "curve"] = Field("none", examples=["median"])
    """Stop a trial that is worse than the median so far, or whose curve predicts a bad end."""

    parameters: dict[
        Annotated[
            str,
            matches(r"[A-Za-z][\w-]*", "an argument's name", "write it without dashes before it"),
        ],
        Parameter,
    ] = Field(min_length=1, examples=[{"learning-rate": {"min": "0.0001", "max": "0.1"}}])
    """What is varied. Each trial gets it as --name=value after the job's own arguments."""

    @model_validator(mode="after")
    def _check(self) -> Study:
        if self.parallel > self.trials:
            raise invalid(
                f"{self.parallel} at once of {self.trials} trials", f"write parallel: {self.trials}"
            )
        for name, parameter in self.parameters.items() if self.algorithm == "grid" else ():
            if parameter.kind == "double":
                raise invalid(
                    f"a grid has no points between {parameter.min} and {parameter.max} of {name}",
                    f"write {name}: {{values: [...]}}, or algorithm: random",
                )
        return self
