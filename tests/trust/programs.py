"""For tests: programs of others that verify what the factory signed."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from tests.debian import tool

PASSWORD = "open sesame"


@functools.cache
def program(name: str) -> Path:
    """Return a program of Debian 14, whose cosign (3.1) needs no network to check a bundle."""
    return tool(name, suite="forky")


def cosign(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run cosign with PASSWORD, in a folder, without the network of Sigstore."""
    return ran("cosign", *words, folder=folder)


def ran(name: str, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, which is its home."""
    return subprocess.run(
        [program(name), *words],
        cwd=folder,
        env={**os.environ, "COSIGN_PASSWORD": PASSWORD, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def accepts(image: str, key: Path, predicate_type: str, *options: str | Path) -> bool:
    """Return whether cosign accepts an attestation of this predicate type."""
    done = cosign(
        "verify-attestation", "--key", key, "--type", predicate_type, *OFFLINE, *options, image,
        folder=key.parent,
    )  # fmt: skip
    return done.returncode == 0


OFFLINE = ("--insecure-ignore-tlog", "--allow-insecure-registry")
