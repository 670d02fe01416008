"""Secrets in the single layers of an image on an engine, as engines give images out."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from builder.prove.audit import in_layers
from builder.prove.checks import contents
from tests.prove.test_audit import KEY, layer

TOKEN = b"token: ghp_" + b"a" * 36
BASE = layer({"etc/hosts": b"x", "root/old.pem": KEY})
WRITTEN = layer({"app/secret.yaml": TOKEN, "app/train.py": b"print(1)"})
REMOVED = layer({"app/.wh.secret.yaml": b"", "root/old.pem": b"overwritten"})
LAYERS = (BASE, WRITTEN, REMOVED)


def named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


IMAGE = SimpleNamespace(id="sha256:1", attrs={"RootFS": {"Layers": [named(one) for one in LAYERS]}})
FOUND = [
    (named(BASE), "/root/old.pem", "a private key"),
    (named(WRITTEN), "/app/secret.yaml", "a GitHub token"),
]


class Client:
    """An engine's client that gives one image out, and counts how often."""

    def __init__(self, archive: bytes) -> None:
        self.asked = 0
        self.api = SimpleNamespace(get_image=self._image)
        self._archive = archive

    def _image(self, name: str, chunk_size: int) -> Iterator[bytes]:
        self.asked += 1
        yield from (self._archive[at : at + 700] for at in range(0, len(self._archive), 700))


ARCHIVES = {
    "Docker 25": layer(
        {f"blobs/sha256/{named(one)[7:]}": one for one in LAYERS} | {"manifest.json": b"[]"}
    ),
    "containerd, gzip": layer(
        {f"blobs/sha256/{index}": gzip.compress(one) for index, one in enumerate(LAYERS)}
    ),
    "containerd, zstd": layer(
        {f"blobs/sha256/{i}": zstandard.compress(one) for i, one in enumerate(LAYERS)}
        | {"blobs/sha256/config": json.dumps({"architecture": "amd64"}).encode()}
    ),
    "Docker 20.10": layer(
        {f"{index}/layer.tar": one for index, one in enumerate(LAYERS)} | {"0/VERSION": b"1.0"}
    ),
    "Podman": layer({f"{named(one)[7:]}.tar": one for one in LAYERS}),
}


def found(client: Client, folder: Path, blobs: Mapping[str, Path] | None = None) -> Any:
    secrets, unread = in_layers.of_image(client, IMAGE, blobs or {}, folder)  # type: ignore[arg-type]
    return [(one.layer, one.path, one.kind) for one in secrets], unread


@pytest.mark.parametrize("engine", ARCHIVES)
def test_what_a_later_layer_removed_or_overwrote_is_found_once(engine: str, tmp_path: Path) -> None:
    client = Client(ARCHIVES[engine])
    assert found(client, tmp_path) == (FOUND, ())
    assert found(client, tmp_path) == (FOUND, ())
    assert client.asked == 1, "what was found in a layer is kept by its digest"


def test_layers_of_this_machine_are_not_asked_of_the_engine(tmp_path: Path) -> None:
    blobs = {}
    for index, one in enumerate(LAYERS):
        blobs[named(one)] = tmp_path / str(index)
        blobs[named(one)].write_bytes(zstandard.compress(one))
    client = Client(b"")
    assert found(client, tmp_path / "kept", blobs) == (FOUND, ())
    assert client.asked == 0


def test_a_layer_that_the_engine_does_not_give_out_is_no_proof(tmp_path: Path) -> None:
    client = Client(layer({f"{named(BASE)[7:]}.tar": BASE}))
    secrets, unread = found(client, tmp_path)
    assert secrets == FOUND[:1]
    assert unread == tuple(map(named, (WRITTEN, REMOVED)))


def test_a_blob_that_was_read_is_passed_over_by_its_own_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containerd store names layers by what they are packed to."""
    packed = [zstandard.compress(one) for one in LAYERS]
    lower = {f"blobs/sha256/{named(one)[7:]}": one for one in packed[:2]}
    other = {f"blobs/sha256/{'0' * 64}": packed[2]}  # no blob of that digest
    found(Client(layer(lower | other)), tmp_path)
    (tmp_path / f"{named(REMOVED)[7:]}-{in_layers._version()}.json").unlink()
    read: list[bytes] = []
    whole = in_layers._read
    monkeypatch.setattr(
        in_layers, "_read", lambda folder, file: read.append(b"") or whole(folder, file)
    )
    assert found(Client(layer(lower | other)), tmp_path) == (FOUND, ())
    assert len(read) == 1


def test_other_rules_read_every_layer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(ARCHIVES["Podman"])
    found(client, tmp_path)
    monkeypatch.setattr(in_layers, "_version", lambda: "others")
    found(client, tmp_path)
    assert client.asked == 2


def test_a_torn_note_is_read_again(tmp_path: Path) -> None:
    client = Client(ARCHIVES["Podman"])
    found(client, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text("[[")
    assert found(client, tmp_path) == (FOUND, ())


def test_the_check_names_what_no_container_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.core.files.cache_home", lambda: tmp_path)
    visible = {"message": "the image holds a private key: /root/old.pem", "fix": "x"}
    run = SimpleNamespace(
        exit_code=0, timed_out=False, answer={"problems": [visible], "seen": {}}, tail=()
    )
    bench: Any = SimpleNamespace(
        subject=SimpleNamespace(
            spec=SimpleNamespace(has_own_base=False), packages={}, stack=None, blobs={}
        ),
        config={},
        client=Client(ARCHIVES["Docker 25"]),
        image=SimpleNamespace(id=IMAGE.id, attrs=IMAGE.attrs, history=list),
        probe=lambda *_, **__: run,
    )
    answer = contents.CHECK.run(bench)
    assert answer is not None
    hidden = f"layer {named(WRITTEN)[:19]} holds a GitHub token: /app/secret.yaml"
    assert [one.message for one in answer[0]] == [
        "the image holds a private key: /root/old.pem",
        f"{hidden}; a later layer hides it",
    ]


def test_a_stream_that_is_no_archive_is_no_layer(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        found(Client(b"not a tar archive at all" * 100), tmp_path)
    assert in_layers._read(tmp_path, io.BytesIO(b"{}")) == {}
