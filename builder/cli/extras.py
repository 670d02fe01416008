"""The features whose packages a plain installation of the factory lacks."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from builder.core.errors import OutsideError

_FEATURES = {
    "aiplatform_v1": ("vertex", "jobs on Vertex AI need"),
    "kubernetes": ("kubernetes", "jobs on Kubernetes need"),
    "optuna": ("study", "a study here or in a cluster needs"),
    "tensorboard": ("tensorboard", "`builder tensorboard` needs"),
    "model_signing": ("models", "signatures of models need"),
    "OpenSSL": ("models", "signatures of models need"),
    "sigstore": ("keyless", "signatures of an identity need"),
}
"""A module -> the extra of pyproject.toml that brings it, and what needs it."""


def missing(error: ImportError) -> OutsideError | None:
    """Return what is to be installed; None where the module belongs to no extra."""
    names = {*(error.name or "").split("."), *str(error).replace("'", " ").split()}
    for module, (extra, feature) in _FEATURES.items():
        if module in names:
            packages = " ".join(f"'{each}'" for each in _packages(extra)) or f"'.[{extra}]'"
            uv = Path(sys.executable).with_name("uv")
            return OutsideError(
                f"{feature} {module}, which is not installed beside the factory",
                f"{uv} pip install --python {sys.executable} {packages}",
            )
    return None


def _packages(extra: str) -> list[str]:
    """Return what an extra asks for; nothing in a source tree, which has no metadata."""
    try:
        lines = metadata.requires("training-image-factory") or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [Requirement(line) for line in lines]
    return [
        f"{each.name}{each.specifier}"
        for each in wanted
        if each.marker and each.marker.evaluate({"extra": extra})
    ]
