"""What the factory writes for a registry: the same content is the same bytes, and reads back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.registry import manifests
from builder.registry.manifests import Manifest


def test_the_order_in_which_something_is_said_does_not_change_a_digest() -> None:
    first = manifests.manifest({"mediaType": "a", "config": {"b": 1, "c": 2}})
    other = manifests.manifest({"config": {"c": 2, "b": 1}, "mediaType": "a"})
    assert first == other
    assert first.digest == other.digest


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"null"])
def test_bytes_that_are_no_json_object_have_no_content(data: bytes) -> None:
    assert Manifest(data, manifests.OCI_MANIFEST).content == {}
    assert Manifest(data, manifests.OCI_MANIFEST).layers == ()


def test_no_other_module_writes_oci_json() -> None:
    own = Path(manifests.__file__)
    written = re.compile(r'"(schemaVersion|diff_ids|created_by|imageLayoutVersion)"')
    others = (path for path in own.parents[1].rglob("*.py") if path != own)
    assert [str(path) for path in others if written.search(path.read_text())] == []
