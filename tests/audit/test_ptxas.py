"""NVIDIA's compiler, and what it says of PTX that a GPU has to use."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.audit import ptxas
from builder.core.errors import CheckFailed, OutsideError
from builder.devicecode.pruning.rule import compute_capability
from tests.devicecode import writer
from tests.devicecode.test_ptx import module


@pytest.mark.network
def test_ptxas_agrees(tmp_path: Path) -> None:
    (tmp_path / "libgood.so").write_bytes(writer.library(writer.container(module("sm_90"))))
    (tmp_path / "libbad.so").write_bytes(writer.library(writer.container(module("sm_90a"))))
    devices = [compute_capability("9.0"), compute_capability("10.0")]
    results = ptxas.compile_paths([tmp_path], devices, "all")
    words = {(result.library, str(result.device)): result.words for result in results}
    assert words.pop(("libbad.so", "10.0")).startswith("ptxas fatal")
    assert set(words.values()) == {""} and len(words) == 3
    with pytest.raises(CheckFailed, match=r"libbad\.so: PTX 8\.5 for sm_90a: 1 modules"):
        ptxas.require(results)


def test_a_compiler_that_cannot_be_fetched_is_one_line_without_a_login() -> None:
    nowhere = {
        "UV_DEFAULT_INDEX": "http://user:secret@127.0.0.1:1/simple",
        "UV_NO_CACHE": "1",
        "UV_HTTP_RETRIES": "0",
    }
    with (
        pytest.raises(OutsideError, match="cannot be fetched: Failed to fetch") as told,
        ptxas.compiler(environment=nowhere),
    ):
        pass
    assert "secret" not in told.value.message and "\n" not in told.value.message
    assert "UV_DEFAULT_INDEX" in told.value.fix
