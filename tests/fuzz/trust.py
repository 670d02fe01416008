"""What comes from others and is trusted after a check: wheels, packages, caches, signed statements,
the answers of a registry over real HTTP. Beside the faults of every kind, `tests.fuzz` counts here
what must never be: other content than was locked or signed, and accepted.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from builder.config import debian_packages, pins, uv
from builder.core.errors import FactoryError, OutsideError
from builder.core.retry import Retry
from builder.image import deb, layers_lock, wheel
from builder.image.content_store import ContentStore
from builder.prove import receipts
from builder.registry import Registry, manifests
from builder.registry.manifests import Descriptor
from builder.trust import attestations, dsse
from builder.trust.dsse import Statement
from builder.trust.policy import Policy
from tests.emulators.answers import Handler, Server
from tests.image import layers
from tests.trust.signing import Pair, pair

_FILES: dict[str, str | bytes] = {
    "one/__init__.py": "import sys\n" * 50,
    "one/data.bin": random.Random(1).randbytes(3000),
    "one-1.0.data/scripts/run": "#!python\nprint()\n",
    "one-1.0.dist-info/entry_points.txt": "[console_scripts]\none = one:main\n",
}
_WHEEL = layers.wheel(_FILES)
_STATEMENT = Statement(f"sha256:{'a' * 64}", dsse.RECEIPT, {"suite": "trainer", "checks": [1, {}]})


_ODD: tuple[Any, ...] = (None, 0, -1, 1 << 70, 1.5, True, "", "x", "\ud800", [], [None], {})


def changed(chance: random.Random, value: Any) -> Any:
    """JSON with some values replaced by others."""
    if chance.random() < 0.15:
        return chance.choice(_ODD)
    if isinstance(value, dict):
        return {key: changed(chance, item) for key, item in value.items()}
    if isinstance(value, list):
        return [changed(chance, item) for item in value] * chance.choice((1, 1, 1, 2))
    return value


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """The factory's own errors are answers."""
    try:
        yield
    except FactoryError as error:
        assert error.message


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with some of them flipped, set to extremes, moved, doubled or gone."""
    content = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(6):
            case 0:
                content[at : at + 1] = chance.randbytes(1)
            case 1:
                content[at : at + 4] = chance.choice([b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f"])
            case 2:
                del content[at : at + chance.choice([1, 2, 30, 500])]
            case 3:
                other = chance.randrange(len(content) + 1)
                content[at:at] = content[other : other + chance.choice([4, 46, 512])]
            case 4:
                content[at : at + 12] = b"77777777777\0"
            case _:
                content[at:at] = chance.choice([b"\0", b"../", b"PK\1\2", b"-1", b"nan", b"\n"])
    return bytes(content)


def wheels(number: int) -> None:
    """A damaged wheel. A file that is installed has the content that it had."""
    data = damaged(random.Random(number), _WHEEL)
    known = wheel.installed(io.BytesIO(_WHEEL), "one", "3.11")
    for path, file in wheel.installed(io.BytesIO(data), "one", "3.11").items():
        content = file.content()
        own = path.startswith("opt/venv/") and not {"..", ""} & set(path.split("/"))
        generated = path.endswith(("/RECORD", "/bin/one")) or path not in known
        if not own or not (generated or content == known[path].content()):
            raise AssertionError(f"{path}: wrong content accepted")


@cache
def _package(packed: str) -> bytes:
    entries: list[tuple[str, str | bytes]] = [
        ("./", b""),
        ("./usr/", b""),
        ("./usr/a", b"x" * 2000),
        ("./usr/b", "a"),
    ]
    return layers.package(*entries, control={"control": b"Package: a\n"}, packed=packed)


def debs(number: int) -> None:
    """A damaged Debian package. Every entry lies inside of the root and has a size and a time."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.deb"
        path.write_bytes(damaged(chance, _package(chance.choice([*layers.PACKERS]))))
        for read in (deb.built, deb.control):
            with contextlib.suppress(OutsideError):
                read(path)
        for info, content in deb.files(path):
            size = sum(map(len, content))
            inside = not info.name.startswith("/") and ".." not in info.name.split("/")
            if not inside or info.size < 0 or not info.mtime >= 0 or size > info.size:
                raise AssertionError(f"{info.name!r}: wrong content accepted")
            info.tobuf()


def caches(number: int) -> None:
    """A cache that someone else wrote to: what is found there is what the lock says."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        store = ContentStore(Path(folder))
        layer = layers.layer(store, {"a": b"1" * 500})
        lock = layers_lock.read(Path(folder) / "layers.lock")
        lock.check(layer, "a")
        for path in [store.path(layer), store.folder / "keys" / f"{layer.key}.json", lock.path]:
            if chance.random() < 0.5:
                path.write_bytes(damaged(chance, path.read_bytes()))
        known = layers_lock.read(lock.path).layers.get(layer.key)
        held = store.find(layer.key)
        if held and manifests.digest_of(store.path(held).read_bytes()) != held.blob.digest:
            raise AssertionError("wrong content accepted: other bytes than the digest")
        if held and held == known != layer:
            raise AssertionError("wrong content accepted: another layer than was made")


_HOME = tempfile.TemporaryDirectory(prefix="fuzz-keys-")


@cache
def _keys() -> Pair:
    return pair(Path(_HOME.name), "ours")


def bundles(number: int) -> None:
    """A damaged bundle: what is accepted is the statement that was signed."""
    chance = random.Random(number)
    sealed = _sealed()
    if chance.random() < 0.5:
        data = damaged(chance, sealed)
    else:
        data = json.dumps(changed(chance, json.loads(sealed))).encode()
    statement, _ = attestations.verify(data, (_keys().signer.public,))
    if statement != _STATEMENT:
        raise AssertionError("wrong content accepted: not the statement that was signed")


@cache
def _sealed() -> bytes:
    return _keys().signer.seal(_STATEMENT.payload)


def statements(number: int) -> None:
    """A statement of another shape, signed by whoever: an answer or an error of our own."""
    chance = random.Random(number)
    content = changed(chance, json.loads(_STATEMENT.payload))
    with own_errors():
        dsse.statement(json.dumps(content).encode())
    checks = [{"name": "size", "version": 1, "passed": True, "seconds": 1.0}]
    day = chance.choice(["2099-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", "9999-99", "x"])
    receipt = {
        "schema_version": 1, "target": "v100", "accelerator": "V100", "reference": "x",
        "suite": "trainer", "image_id": f"sha256:{'a' * 64}", "inputs": "x", "made_by": "x",
        "made_at": day,
        "device": "CPU", "checks": checks,
    }  # fmt: skip
    with own_errors():
        read = receipts.of_json(changed(chance, receipt), "receipt")
        now = datetime(2026, 11, 1, tzinfo=UTC)
        if read.made_at.startswith("2099-") and not Policy().refusal(read, now):
            raise AssertionError("wrong content accepted: a receipt of the future")


def indexes(number: int) -> None:
    """What an index of Python, or Debian's lists, made of a damaged page, as uv and apt give it
    out: what gets into a lock is read from there as it was written."""
    chance = random.Random(number)

    def text(value: str) -> str:
        return damaged(chance, value.encode()).decode(errors="replace")

    hashed = "a" * 64
    name, address = "one-1.0-py3-none-any.whl", "https://a.example/f/one-1.0-py3-none-any.whl"
    wheel: dict[str, Any] = {"name": name, "url": address, "size": 9, "hashes": {"sha256": hashed}}
    wheel |= {key: text(wheel[key]) for key in ("name", "url") if chance.random() < 0.4}
    wheel["hashes"] = {"sha256": text(hashed) if chance.random() < 0.2 else hashed}
    wheel["size"] = changed(chance, 9) if chance.random() < 0.2 else 9
    package = {"name": "one", "version": "1.0", "wheels": [wheel, wheel]}
    package |= {key: text(str(package[key])) for key in ("version",) if chance.random() < 0.4}
    with own_errors():
        pin = uv._pin(package, uv.Platform("3.11", 36))
        if pins.parse(pins.dump([pin], "x")) != (pin,):
            raise AssertionError("wrong content accepted: another pin than was written")
    address = "http://a.example/debian/pool/main/a/ab/ab_1%3a2_all.deb"
    uris = f"'{address}' ab_1%3a2_all.deb 9 SHA256:{hashed}\n"
    for _ in range(2):
        uris += text(uris.splitlines()[0]) + "\n"
    with own_errors():
        chosen = debian_packages.from_apt(uris, dict.fromkeys(debian_packages.ARCHIVES, _DATE))
        if debian_packages.parse(debian_packages.dump(chosen)) != chosen:
            raise AssertionError("wrong content accepted: other packages than were written")


_DATE = "Sat, 11 Jul 2026 22:16:37 UTC"


class _Raw(Handler):
    """Sends the bytes that it is told to, as its whole answer."""

    def answer(self) -> None:
        self.wfile.write(self.server.answers["raw"][2])
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815


@cache
def _server() -> Server:
    server = Server({})
    server.RequestHandlerClass = _Raw
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def http(number: int) -> None:
    """One answer of a registry, damaged anywhere: what is taken has the digest asked for."""
    chance = random.Random(number)
    body = json.dumps({"schemaVersion": 2, "layers": [], "config": {}, "x": "y" * 300}).encode()
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\n"
        f"Docker-Content-Digest: {manifests.digest_of(body)}\r\nLink: </v2/x>; rel=next\r\n"
    )
    sizes = chance.choice([f"Content-Length: {len(body)}\r\n\r\n", "\r\n"])
    chunked = (
        f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    )
    whole = head.encode() + chance.choice([sizes.encode() + body, chunked])
    server = _server()
    server.answers["raw"] = (0, {}, damaged(chance, whole))
    blob = Descriptor("application/octet-stream", manifests.digest_of(body), len(body))
    with (
        mock.patch("builder.core.web.Client.__init__.__kwdefaults__", {**_TIMES}),
        Registry(f"127.0.0.1:{server.server_port}", Retry(attempts=1)) as client,
    ):
        asks: tuple[Callable[[], bytes], ...] = (
            lambda: client.manifest("x", blob.digest).data,  # type: ignore[union-attr]
            lambda: client.blob("x", blob),
            lambda: _fetched(client, blob),
        )
        for ask in asks:
            with _answers():
                if ask() != body:
                    raise AssertionError("wrong content accepted: not the digest's")
        with _answers():
            client.tags("x", "v")


_TIMES = {"proxied": True, "connect": 1.0, "read": 0.1, "context": None, "unchecked": ()}


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    with own_errors(), contextlib.suppress(AttributeError):  # None: there is no such manifest
        yield


def _fetched(client: Registry, blob: Descriptor) -> bytes:
    out = io.BytesIO()
    client.fetch("x", blob, out, lambda _: None)
    return out.getvalue()


KINDS: dict[str, Any] = {
    "wheels": wheels,
    "debs": debs,
    "caches": caches,
    "indexes": indexes,
    "bundles": bundles,
    "statements": statements,
    "http": http,
}
