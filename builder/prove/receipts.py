"""What was proven about an image: a JSON file bound to that image and to each check's version.

A receipt names the suite of checks that the image went through, and for each check its version and
what it saw. It holds for one image only, named by its digest, or by its id where the engine's store
knows no digest. It no longer holds once a required check has a newer version. `valid_for` decides.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictStr,
    ValidationError,
)
from pydantic.dataclasses import dataclass as validated

from builder import __version__
from builder.core import files
from builder.core.display import line
from builder.core.errors import CheckFailed, InputError

SCHEMA: Final = 1
FILE: Final = "receipt.json"
"""The receipt's name in build/<target>/."""

TRAINER: Final = "trainer"
"""The suite of an image whose program trains, checkpoints and resumes as the contract asks."""
PROGRAM: Final = "program"
"""The suite of an image with any other program."""

_AGAIN = "run `builder smoke` for it again"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


Line = Annotated[StrictStr, AfterValidator(line)]
"""Text that may hold words of an image: one line, which commands no terminal and no CI service."""


@validated(frozen=True, config=ConfigDict(extra="forbid", defer_build=True))
class Defect:
    """One thing that is wrong with an image, and how to fix it."""

    message: Line
    fix: Line = ""


@validated(frozen=True, config=ConfigDict(extra="forbid", defer_build=True))
class Finding(Defect):
    """A defect that does not refuse an image that others made."""


class CheckResult(_Frozen):
    """What one check saw in one image, and what is wrong with it."""

    name: str
    version: int = Field(ge=1)
    passed: bool
    """Nothing refuses the image."""
    seconds: float = Field(ge=0)
    problems: tuple[Defect, ...] = Field(default=(), strict=False)
    findings: tuple[Defect, ...] = Field(default=(), strict=False, exclude_if=operator.not_)
    """What is worth a change, and no reason to refuse an image that others made."""
    not_there: Line = Field(default="", exclude_if=operator.not_)
    """Why there was nothing to look at; "" where there was."""
    seen: dict[str, JsonValue] = {}

    @property
    def not_followed(self) -> str:
        """What it could not look into, and why; "" for nothing."""
        return str(self.seen.get("not_followed", ""))

    @property
    def status(self) -> Literal["passed", "refused", "not there", "not followed"]:
        if not self.passed:
            return "refused"
        if self.not_there:
            return "not there"
        return "not followed" if self.not_followed else "passed"

    @property
    def note(self) -> str:
        """What was seen, or why there was nothing to look at, for people."""
        seen = (str(self.seen.get("note", "")), self.not_followed)
        return self.not_there or line("; not followed: ".join(filter(None, seen)))


class Spent(_Frozen):
    """What a proof used of something that has a limit."""

    what: str
    used: float = Field(ge=0)
    limit: float = Field(gt=0)


def _time(text: str) -> datetime:
    """Return a time in ISO 8601, in UTC where it names no zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _dated(text: str) -> str:
    _time(text)
    return text


class Receipt(_Frozen):
    """The checks that one image went through."""

    schema_version: Literal[1] = SCHEMA
    target: str
    accelerator: str
    reference: str
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """Of the image's manifest, None where the engine's store keeps none."""
    image_id: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """What the engine calls Id."""
    inputs: str
    """Hash of everything the image was made from."""
    made_by: str
    """Version of the factory."""
    made_at: Annotated[str, AfterValidator(_dated)]
    """UTC, ISO 8601."""
    device: str
    """What the program ran on: "CPU", or a GPU as its driver calls it."""
    suite: str
    """The name of the suite that these checks belong to."""
    checks: tuple[CheckResult, ...] = Field(strict=False)
    ledger: tuple[Spent, ...] = Field(default=(), strict=False, exclude_if=operator.not_)

    @property
    def time(self) -> datetime:
        return _time(self.made_at)

    @property
    def passed(self) -> bool:
        """At least one check, and none that did not pass."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def result(self, name: str) -> CheckResult | None:
        return next((check for check in self.checks if check.name == name), None)

    def seen(self, name: str) -> Mapping[str, JsonValue]:
        """Return what the check of this name saw; nothing where there was none."""
        check = self.result(name)
        return check.seen if check else {}

    @property
    def ended(self) -> str:
        """How the program of an image that nothing refuses ended, where it was not well; such an
        image is not called proven."""
        return str(self.seen("starts").get("ended", ""))

    @property
    def verdict(self) -> str:
        """What the image was seen to do, in a few words."""
        return f"started, then {self.ended}" if self.ended else f"proven on {self.device}"

    @property
    def problems(self) -> tuple[Defect, ...]:
        return tuple(problem for check in self.checks for problem in check.problems)


def of(suite: str, checks: Sequence[CheckResult], device: str = "CPU", **image: Any) -> Receipt:
    """Return the receipt of what was asked now. device: what the program ran on. image: the fields
    that say of which image."""
    return Receipt(
        made_by=__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        suite=suite,
        checks=tuple(checks),
        **image,
    )


@dataclass(frozen=True)
class Validity:
    """Whether a receipt holds."""

    reason: str = ""
    """Why it does not, in one line."""

    def __bool__(self) -> bool:
        return not self.reason


def valid_for(
    receipt: Receipt | None, image: str | Iterable[str], required: Mapping[str, int]
) -> Validity:
    """Tell whether `receipt` proves one image, which is given by its digest, its id or both.

    required: the checks that the receipt must hold, each with its present version.
    """
    names = {image} if isinstance(image, str) else {name for name in image if name}
    if receipt is None:
        return Validity("there is no receipt")
    if not names & {receipt.digest, receipt.image_id}:
        return Validity(
            f"the receipt is for another image: {receipt.digest or receipt.image_id}, "
            f"not {' or '.join(sorted(names)) or 'this one'}"
        )
    results = {check.name: check for check in receipt.checks}
    for check in receipt.checks:
        if not check.passed:
            why = check.problems[0].message if check.problems else "no reason given"
            return Validity(f"the check {check.name} did not pass: {why}")
        if check.not_followed:
            why = check.not_followed
            return Validity(f"the check {check.name} could not follow {why}")
    for name, version in required.items():
        if name not in results:
            return Validity(f"the receipt holds no check {name}")
        if (old := results[name].version) != version:
            return Validity(f"the receipt's check {name} is version {old}, now it is {version}")
    return Validity()


def failure(name: str, problems: Sequence[Defect]) -> CheckFailed:
    """Return the error of an image that did not pass: its first problem, and how many more."""
    first = problems[0] if problems else Defect("a check did not pass, without a reason")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return CheckFailed(f"{name}: {first.message}{more}", first.fix)


def dump(receipt: Receipt) -> bytes:
    """Return canonical JSON (sorted keys, no NaN): the same receipt is the same bytes."""
    value = receipt.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)
    return (text + "\n").encode()


def parse(data: bytes, source: str) -> Receipt:
    """Return the receipt in this JSON; `source` names it in errors. Raises InputError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{source}: torn or no JSON ({error})", f"delete it, then {_AGAIN}"
        ) from None
    return of_json(value, source)


def of_json(value: object, source: str) -> Receipt:
    """Return the receipt of this JSON value. Raises InputError."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA:
        raise InputError(
            f"{source}: schema_version is {version!r}, this factory reads {SCHEMA}", _AGAIN
        )
    try:
        return Receipt.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{source}: {field}: {first['msg']}", f"delete it, then {_AGAIN}"
        ) from None


def write(receipt: Receipt, path: Path) -> None:
    files.write(path, dump(receipt))


def read(path: Path) -> Receipt | None:
    """Return the receipt at `path`; None where there is none. Raises InputError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse(data, str(path))
