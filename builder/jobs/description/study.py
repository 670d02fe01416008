"""The study of a job's file: what it varies, and how it searches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from builder.core.findings import matches, refuse
from builder.jobs.description.values import Number, Text, WrittenModel

WHOLE = 2**53
"""Up to here each whole number is a floating-point number, too."""


class Parameter(WrittenModel):
    """One parameter that a study varies: a range (min, max) or values."""

    min: Number | None = Field(None, examples=["0.0001"])
    """The least value."""

    max: Number | None = Field(None, examples=["0.1"])
    """The largest value."""

    values: tuple[Text, ...] | None = Field(None, examples=[["16", "32", "64"]])
    """The values to choose from: numbers, or words."""

    type: Literal["double", "integer", "discrete", "categorical"] | None = Field(
        None, examples=["integer"]
    )
    """By default what the values look like: integer for whole min and max, discrete for numbers."""

    scale: Literal["linear", "log", "reverse-log"] = Field("linear", examples=["log"])
    """How the range is searched."""

    when: dict[str, tuple[Text, ...]] | None = Field(
        None, min_length=1, max_length=1, examples=[{"optimizer": ["sgd"]}]
    )
    """Only where another parameter has one of these values."""

    @property
    def kind(self) -> Literal["double", "integer", "discrete", "categorical"]:
        """The type as written, or as the values look."""
        if self.type:
            return self.type
        if self.values is not None:
            return "discrete" if all(_is_number(one) for one in self.values) else "categorical"
        ends = (self.min or "", self.max or "")
        return "integer" if all(re.fullmatch(r"[+-]?[0-9]+", one) for one in ends) else "double"

    @model_validator(mode="after")
    def _whole(self) -> Parameter:
        ranged, listed = self.min is not None or self.max is not None, self.values is not None
        if ranged == listed or (ranged and (self.min is None or self.max is None)):
            raise refuse("needs min and max, or values", "write {min: 0.001, max: 0.1}")
        if self.values is not None:
            self._check_values(self.values)
        if self.min is not None and self.max is not None:
            self._check_range(self.min, self.max)
        if self.scale != "linear" and self.kind == "categorical":
            raise refuse("words have no scale", "remove scale")
        return self

    def takes(self, value: str) -> bool:
        """Whether a trial can have this value."""
        if self.values is not None:
            return self.among(value, self.values)
        whole = re.fullmatch(r"[+-]?[0-9]{1,16}", value) is not None
        return whole and float(self.min or 0) <= int(value) <= float(self.max or 0)

    def among(self, value: object, wanted: tuple[str, ...]) -> bool:
        """Whether a value is one of those; numbers are compared as numbers."""
        if self.kind == "categorical" or not _is_number(str(value)):
            return str(value) in wanted
        return any(_is_number(one) and float(one) == float(str(value)) for one in wanted)

    def _check_values(self, values: tuple[str, ...]) -> None:
        if self.kind in ("double", "integer"):
            raise refuse(f"a list of values is not {self.kind}", "write type: discrete")
        if not values or len(set(values)) < len(values):
            raise refuse("the values are empty or repeated", "write different values")
        if self.kind == "discrete":
            if not all(_is_number(one) for one in values):
                raise refuse("discrete values are numbers", "write type: categorical")
            if self.scale != "linear" and min(float(one) for one in values) <= 0:
                raise refuse("a log scale needs values above 0", "write scale: linear")

    def _check_range(self, low: str, high: str) -> None:
        if self.kind in ("discrete", "categorical"):
            raise refuse(f"{self.kind} needs values", "write values: [a, b, c]")
        if self.kind == "integer" and any(float(one) != int(float(one)) for one in (low, high)):
            raise refuse("an integer's min and max are whole numbers", "write type: double")
        if self.kind == "integer" and max(abs(float(low)), abs(float(high))) > WHOLE:
            raise refuse("an integer's min and max are at most 2^53", "write type: double")
        if float(low) >= float(high):
            raise refuse(f"min {low} is not below max {high}", "write the smaller one as min")
        if self.scale != "linear" and float(low) <= 0:
            raise refuse(f"a {self.scale} scale needs min above 0", "write scale: linear")


def _is_number(text: str) -> bool:
    try:
        return float(text) - float(text) == 0
    except ValueError:
        return False


def _metric(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w./-]*", value):
        raise refuse(f"{value!r} is not a metric's name", "write the name that is reported")
    return value


class Study(WrittenModel):
    """A hyperparameter study: the job is run once for each trial, with other arguments."""

    metric: Annotated[str, AfterValidator(_metric)] = Field(examples=["validation_accuracy"])
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

    more_metrics: dict[str, Literal["maximize", "minimize"]] = Field(
        {}, examples=[{"seconds": "minimize"}]
    )
    """Other metrics that count, too, and whether a larger or a smaller value is better."""

    parameters: dict[
        Annotated[
            str,
            matches(r"[A-Za-z][\w-]*", "an argument's name", "write it without dashes before it"),
        ],
        Parameter,
    ] = Field(min_length=1, examples=[{"learning-rate": {"min": "0.0001", "max": "0.1"}}])
    """What is varied. Each trial gets it as --name=value after the job's own arguments."""

    @model_validator(mode="after")
    def _fits(self) -> Study:
        if self.parallel > self.trials:
            raise refuse(
                f"{self.parallel} at once of {self.trials} trials", f"write parallel: {self.trials}"
            )
        if self.algorithm == "grid":
            for name, one in self.parameters.items():
                if one.kind == "double":
                    raise refuse(
                        f"a grid has no points between {one.min} and {one.max} of {name}",
                        f"write {name}: {{values: [...]}}, or algorithm: random",
                    )
        if self.metric in self.more_metrics:
            raise refuse(f"{self.metric} is the metric already", "remove it from more_metrics")
        for name, one in self.parameters.items():
            self._check_condition(name, one)
        return self

    def _check_condition(self, name: str, one: Parameter) -> None:
        """Refuse a condition that nothing can meet, and one that leads back to itself."""
        for parent, values in (one.when or {}).items():
            if parent not in self.parameters:
                raise refuse(
                    f"{name} hangs on {parent}, which is no parameter",
                    f"write one of {', '.join(self.parameters)}",
                )
            above = self.parameters[parent]
            if above.kind == "double":
                raise refuse(
                    f"{name} hangs on {parent}, which has no single values",
                    f"write values for {parent}",
                )
            strange = [value for value in values if not above.takes(value)]
            if strange or not values:
                raise refuse(
                    f"{parent} is never {strange[0] if strange else 'nothing'}",
                    f"write values of {parent}, under when of {name}",
                )
        if len(self.line_of(name)) > len(self.parameters):
            raise refuse(f"{name} hangs on itself", "remove one when")

    def line_of(self, name: str) -> list[str]:
        """A parameter and those that it hangs on, the last one free; endless in a circle, and then
        cut where it is longer than there are parameters."""
        found = [name]
        while (when := self.parameters[found[-1]].when) and len(found) <= len(self.parameters):
            parent = next(iter(when))
            if parent not in self.parameters:
                break
            found.append(parent)
        return found

    def active(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """The parameters that count in a trial with these values of all."""

        def met(name: str) -> bool:
            when = self.parameters[name].when or {}
            return all(
                parent in values and self.parameters[parent].among(values[parent], wanted)
                for parent, wanted in when.items()
            )

        return tuple(
            name for name in self.parameters if all(met(one) for one in self.line_of(name))
        )
