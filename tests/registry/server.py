"""For tests: a real registry on loopback (Debian's docker-registry), skopeo as a foreign client."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.debian import tool

USER, PASSWORD = "someone", "open sesame"
# bcrypt of PASSWORD, the only kind that docker-registry reads
HTPASSWD = f"{USER}:$2b$04$o7ddqa7Q363c8/dpAqtuYeadWMHnIs3oDSaunb4MKt0lThaS05J4G\n"


@functools.cache
def program(name: str) -> Path:
    """`docker-registry` or `skopeo`, unpacked from Debian's packages."""
    return tool(name)


@dataclass
class RegistryServer:
    """A docker-registry; `host` is what an image reference names. Storage lies in `folder`."""

    folder: Path
    port: int = 0
    auth: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Its access log."""
        return self.folder / "registry.log"

    def start(self) -> None:
        """Start it and wait until it answers; again on the same port and storage after `kill`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        config = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {
                "filesystem": {"rootdirectory": str(self.folder / "storage")},
                "delete": {"enabled": True},
            },
            "http": {"addr": self.host},
        }
        if self.auth:
            config["auth"] = self.auth
        path = self.folder / "config.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [program("docker-registry"), "serve", path], stdout=log, stderr=log
            )
        for _ in range(1200):
            try:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                    f"http://{self.host}/v2/", timeout=5
                )
            except urllib.error.HTTPError:  # 401: it is up, and wants a login
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text()) from None
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"docker-registry did not come up: {self.log.read_text()}")

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def collect_garbage(self) -> None:
        """Delete what no tag leads to, as its operators do; it is stopped for that time."""
        self.kill()
        subprocess.run(
            [
                program("docker-registry"),
                "garbage-collect",
                "--delete-untagged",
                self.folder / "config.yml",
            ],
            check=True,
            capture_output=True,
        )
        self.start()

    def digests(self, repository: str) -> set[str]:
        """The manifests that it stores for a repository, read from its disk."""
        place = f"storage/docker/registry/v2/repositories/{repository}/_manifests/revisions/sha256"
        return {f"sha256:{path.name}" for path in (self.folder / place).glob("*")}

    def tags(self, repository: str) -> dict[str, str]:
        """Tag -> digest, read from its disk."""
        place = f"storage/docker/registry/v2/repositories/{repository}/_manifests/tags"
        return {
            path.parent.parent.name: path.read_text()
            for path in (self.folder / place).glob("*/current/link")
        }

    def blob_file(self, digest: str) -> Path:
        """Where a blob or manifest lies on its disk."""
        hexes = digest.removeprefix("sha256:")
        return self.folder / f"storage/docker/registry/v2/blobs/sha256/{hexes[:2]}/{hexes}/data"


@contextmanager
def registry(folder: Path, auth: dict[str, Any] | None = None) -> Iterator[RegistryServer]:
    """A running registry with its storage in `folder`."""
    server = RegistryServer(folder, auth=auth or {})
    server.start()
    try:
        yield server
    finally:
        server.kill()


def basic_auth(folder: Path) -> dict[str, Any]:
    """docker-registry's configuration for USER and PASSWORD."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "htpasswd"
    path.write_text(HTPASSWD)
    return {"htpasswd": {"realm": "tests", "path": str(path)}}


def skopeo(*arguments: str, timeout: float = 300) -> str:
    """Run skopeo; its output. Raises RuntimeError with its stderr."""
    done = subprocess.run(
        [program("skopeo"), "--insecure-policy", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"skopeo {' '.join(arguments)}: {done.stderr}")
    return done.stdout
