"""A feature whose packages are not installed says in two lines what brings them."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from builder.cli import extras
from builder.cli.extras import _FEATURES, missing

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MODULES = {
    "aiplatform_v1": "google.cloud.aiplatform_v1",
    "kubernetes": "kubernetes.config.kube_config",
    "optuna": "optuna",
    "tensorboard": "tensorboard.program",
    "model_signing": "model_signing.signing",
    "OpenSSL": "OpenSSL.crypto",
    "sigstore": "sigstore.models",
}


@pytest.mark.parametrize("name", _FEATURES)
def test_a_module_that_is_not_installed_is_named_with_the_command_that_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asked,) = PYPROJECT["optional-dependencies"][_FEATURES[name][0]][:1]
    line = f'{asked}; extra == "{_FEATURES[name][0]}"'
    monkeypatch.setattr(extras.metadata, "requires", lambda _: ["docker>=7", line])
    module = MODULES[name]
    for part in (module, module.partition(".")[0]) if "google" not in module else (module,):
        monkeypatch.setitem(importlib.import_module("sys").modules, part, None)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(module)
    error = missing(raised.value)
    assert error is not None and error.exit_code == 3
    assert f"{name}, which is not installed beside the factory" in error.message
    assert "uv pip install --python" in error.fix and f" '{asked.partition('>')[0]}" in error.fix


def test_a_module_of_the_factory_that_is_gone_stays_a_bug() -> None:
    assert missing(ModuleNotFoundError("No module named 'builder.x'", name="builder.x")) is None


def test_a_plain_installation_has_no_client_of_one_feature_and_all_has_each() -> None:
    plain = " ".join(PYPROJECT["dependencies"])
    for extra, packages in PYPROJECT["optional-dependencies"].items():
        if extra in {feature for feature, _ in _FEATURES.values()}:
            assert not any(package.split(">=")[0] in plain for package in packages), extra
            assert extra in PYPROJECT["optional-dependencies"]["all"][0]
