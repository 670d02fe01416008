"""Folders uploaded to a bucket over the real protocol and to a folder, and what can fail."""

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import ROOT

fsspec = pytest.importorskip("fsspec")

from trainer import upload  # noqa: E402
from trainer.upload import UploadError, sums_of  # noqa: E402


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two files of records, one of which is sent in parts, and the files beside them."""
    folder = tmp_path / "records"
    (folder / "more").mkdir(parents=True)
    (folder / "train-0.tfrecord").write_bytes(os.urandom(6 << 20))
    (folder / "more" / "train-1.tfrecord").write_bytes(os.urandom(1000))
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "dataset.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of a Google Cloud Storage emulator on loopback, with a bucket."""
    server = pytest.importorskip("gcp_storage_emulator.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["gs", "folder", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """An address, and the options of its file system."""
    if request.param == "gs":
        endpoint = request.getfixturevalue("bucket")
        yield f"gs://bucket/{tmp_path.name}", {"token": "anon", "endpoint_url": endpoint}
    elif request.param == "folder":
        yield str(tmp_path / "target"), {}
    else:
        yield f"memory://{tmp_path.name}", {}


def content(target: tuple[str, dict[str, Any]]) -> dict[str, bytes]:
    filesystem, root = fsspec.core.url_to_fs(target[0], use_listings_cache=False, **target[1])
    root = root.rstrip("/")
    return {path[len(root) + 1 :]: filesystem.cat_file(path) for path in filesystem.find(root)}


def of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_all_is_sent_once_and_only_what_differs_again(records: Path, target: tuple) -> None:
    address, options = target
    first = upload.upload(records, address, **options)
    assert (first.files, first.sent, first.extra) == (4, 4, ())
    assert first.sent_bytes == first.bytes == sum(map(len, of(records).values()))
    assert content(target) == of(records)

    assert upload.upload(records, address, **options).sent == 0

    (records / "labels.txt").write_text("cat\nfox\n")  # The same size.
    (records / "train-2.tfrecord").write_bytes(b"new")
    (records / "more" / "train-1.tfrecord").unlink()
    again = upload.upload(records, address, **options)
    assert again.sent == 2
    assert again.extra == ("more/train-1.tfrecord",)
    assert "more/train-1.tfrecord" in content(target)


def test_what_was_changed_on_the_other_side_is_sent_again(records: Path, target: tuple) -> None:
    address, options = target
    upload.upload(records, address, **options)
    filesystem, root = fsspec.core.url_to_fs(address, use_listings_cache=False, **options)
    damaged = bytearray((records / "more/train-1.tfrecord").read_bytes())
    damaged[500] ^= 1
    filesystem.pipe_file(f"{root}/more/train-1.tfrecord", bytes(damaged))
    filesystem.pipe_file(f"{root}/train-0.tfrecord", b"cut short")
    assert upload.upload(records, address, **options).sent == 2
    assert content(target) == of(records)


def test_dataset_json_goes_last(records: Path, target: tuple, monkeypatch) -> None:
    address, options = target
    sent = []
    put = upload._put

    def noting(filesystem: Any, path: Path, to: str) -> None:
        sent.append(path.name)
        put(filesystem, path, to)

    monkeypatch.setattr(upload, "_put", noting)
    upload.upload(records, address, **options)
    assert sent[-1] == "dataset.json"


def test_a_transfer_that_fails_is_tried_again(records: Path, tmp_path: Path, monkeypatch) -> None:
    failures = {"train-0.tfrecord": 2, "labels.txt": 1}
    put = upload._put

    def failing(filesystem: Any, path: Path, to: str) -> None:
        if failures.get(path.name, 0):
            failures[path.name] -= 1
            raise ConnectionResetError("peer went away")
        put(filesystem, path, to)

    monkeypatch.setattr(upload, "_put", failing)
    assert upload.upload(records, str(tmp_path / "target"), wait=0.0).sent == 4
    assert not any(failures.values())
    assert of(tmp_path / "target") == of(records)


def test_what_arrives_damaged_is_found(records: Path, tmp_path: Path, monkeypatch) -> None:
    def damaging(filesystem: Any, path: Path, to: str) -> None:
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        filesystem.pipe_file(to, bytes(content))

    monkeypatch.setattr(upload, "_put", damaging)
    with pytest.raises(UploadError, match=r"arrived with other content \(4 tries\)"):
        upload.upload(records, f"memory://{tmp_path.name}", wait=0.0)


def test_google_tells_the_checksum_and_nothing_is_read_back(records: Path) -> None:
    sums = sums_of(records / "train-0.tfrecord")

    class Google:
        protocol = ("gs", "gcs")

    crc = base64.b64encode(sums.crc32c.to_bytes(4, "big")).decode()
    md5 = base64.b64encode(bytes.fromhex(sums.md5)).decode()
    for info, expected in (
        ({"size": sums.size, "crc32c": crc}, True),
        ({"size": sums.size, "md5Hash": md5}, True),
        ({"size": sums.size, "crc32c": "AAAAAA=="}, False),
        ({"size": sums.size, "md5Hash": crc}, False),
        ({"size": sums.size - 1, "crc32c": crc}, False),
    ):
        assert upload.is_there(Google(), "bucket/x", info, sums) is expected


def test_what_cannot_be_sent_is_refused(tmp_path: Path, records: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "train-0.tfrecord.tmp-12").touch()
    for source, target, message, code in (
        (tmp_path / "nowhere", "memory://x", "there is no such folder", 2),
        (tmp_path / "empty", "memory://x", "has no files", 2),
        (tmp_path / "half", "memory://x", "is being written", 2),
        (records, "bogus://x/y", "bogus", 2),
        (records, "/proc/nowhere", "/proc/nowhere", 3),
    ):
        assert upload.main([str(source), target]) == code
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1


def test_the_command_says_what_it_did(records: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.upload", str(records), str(tmp_path / "to")]
    for sent, there in ((4, 0), (0, 4)):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert f"all verified: {sent} sent" in done.stdout
        assert f"{there} there already" in done.stdout
