"""The flags of `gcloud ai-platform jobs submit training` as fields of a trainingInput.

What a flag says won over the configuration's file. Source: the reference of that command in the
Google Cloud CLI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import InputError

_PREFIXES: Final = ("master", "worker", "parameter-server")

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "scale-tier": ("scaleTier",),
    "job-dir": ("jobDir",),
    "region": ("region",),
    "runtime-version": ("runtimeVersion",),
    "python-version": ("pythonVersion",),
    "module-name": ("pythonModule",),
    "package-path": ("packageUris",),
    "packages": ("packageUris",),
    "service-account": ("serviceAccount",),
    "use-chief-in-tf-config": ("useChiefInTfConfig",),
    "enable-web-access": ("enableWebAccess",),
    "kms-key": ("encryptionConfig", "kmsKeyName"),
    "worker-count": ("workerCount",),
    "parameter-server-count": ("parameterServerCount",),
    **{
        f"{prefix}-{flag}": (
            re.sub("-s", "S", prefix) + field[0],
            *field[1:],
        )
        for prefix in _PREFIXES
        for flag, field in {
            "machine-type": ("Type",),
            "image-uri": ("Config", "imageUri"),
            "accelerator": ("Config", "acceleratorConfig"),
        }.items()
    },
}
"""Each flag, and the field of trainingInput that it fills."""


def given(flags: Mapping[str, str | None]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """The fields that flags fill: the flag's name and the value. Raises InputError."""
    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    for name, text in flags.items():
        if text is None:
            continue
        value: Any = text
        if name.endswith("accelerator"):
            value = _accelerator(f"--{name}", text)
        elif name in ("packages", "package-path"):
            value = text.split(",")
        found[FIELDS[name]] = (f"--{name}", value)
    return found


def labels(text: str | None) -> dict[str, str]:
    """`--labels a=b,c=d`. Raises InputError."""
    pairs = [one.partition("=") for one in (text or "").split(",") if one]
    if any(not name or not equal for name, equal, _ in pairs):
        raise InputError(f"--labels {text}: are no labels", "write --labels name=value,other=value")
    return {name: value for name, _, value in pairs}


def _accelerator(flag: str, text: str) -> dict[str, str]:
    """`count=2,type=nvidia-tesla-v100`. gcloud wrote the type small and with dashes."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if not parts.get("type") or not parts.keys() <= {"count", "type"}:
        raise InputError(
            f"{flag} {text}: is no accelerator", f"write {flag} count=1,type=nvidia-tesla-v100"
        )
    return {"count": parts.get("count", "1"), "type": parts["type"].upper().replace("-", "_")}
