"""One layer on top of a base in a registry: what is read from the Dockerfile, and what is made."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from builder.bases.assembled import assemble
from builder.bases.layer import Compression
from builder.bases.store import Store
from builder.core import project
from builder.core.templates import EPOCH
from builder.pipeline import append
from builder.pipeline.append import CopyOnly
from builder.pipeline.plan import File
from builder.registry import manifests
from builder.spec import catalogue

ROOT = project.find_root(Path(__file__).parent)

COPIES = """\
# A comment.
ARG REPOSITORY=training
FROM ${REPOSITORY}:base-0123456789abcdef

COPY --link --chown=1000:1000 app /app

ENV A="one two" \\
    B="3"

USER 1000:1000
ENTRYPOINT ["python", "-m", "trainer.task"]

LABEL title="cpu" \\
      kernels="runs as an older minor"
"""


def test_a_dockerfile_that_only_copies() -> None:
    assert append.read(COPIES) == CopyOnly(
        base="base-0123456789abcdef",
        owner=(1000, 1000),
        user="1000:1000",
        entrypoint=("python", "-m", "trainer.task"),
        environment={"A": "one two", "B": "3"},
        labels={"title": "cpu", "kernels": "runs as an older minor"},
    )


@pytest.mark.parametrize("target", catalogue.targets(ROOT))
def test_every_target_of_ours_only_copies(target: str) -> None:
    assert append.read((ROOT / "images" / target / "Dockerfile").read_text())


@pytest.mark.parametrize(
    "line",
    [
        "RUN true",
        "WORKDIR /elsewhere",
        "COPY --link --chown=1000:1000 more /more",
        "COPY app /app",
        "ENV PATH=/app:$PATH",
        "ENTRYPOINT python",
        "FROM ${REPOSITORY}:base-0123456789abcdef",
        "HEALTHCHECK NONE",
        "USER $U",
        "ENV A b",
        "LABEL a b",
        "ENTRYPOINT [broken",
        'ENTRYPOINT ["python", 1]',
        "ENV A='open",
    ],
)
def test_one_that_does_more_is_left_to_an_engine(line: str) -> None:
    assert append.read(f"{COPIES}\n{line}\n") is None


def test_a_published_base_is_left_to_an_engine() -> None:
    assert append.read("FROM debian:bookworm\nCOPY --link --chown=1000:1000 app /app\n") is None


def test_the_layer_holds_files_and_their_folders_and_nothing_of_today(tmp_path: Path) -> None:
    files = {"app/trainer/run.sh": File(b"#!/bin/sh\n", True), "app/trainer/a.py": File(b"A = 1\n")}
    store, copied = Store(tmp_path), CopyOnly("base-1", (1000, 1000))
    base = assemble([], {"Env": ["PATH=/bin"]})
    image = append.image(store, base, copied, files, Compression())
    again = append.image(
        Store(tmp_path / "other"), base, copied, dict(reversed(files.items())), Compression()
    )
    assert image.digest == again.digest
    packed = store.path(image.layers[-1]).read_bytes()
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        seen = [(e.name, e.mode, e.uid, e.gid, int(e.mtime)) for e in archive]
    assert seen == [
        ("app", 0o755, 1000, 1000, EPOCH),
        ("app/trainer", 0o755, 1000, 1000, EPOCH),
        ("app/trainer/a.py", 0o644, 1000, 1000, EPOCH),
        ("app/trainer/run.sh", 0o755, 1000, 1000, EPOCH),
    ]


def test_another_program_is_another_layer_and_the_same_one_is_taken(tmp_path: Path) -> None:
    store, copied = Store(tmp_path), CopyOnly("base-1", (0, 0))
    base = assemble([], {})
    one, two, three = (
        append.image(store, base, copied, {"app/a.py": File(text, executable)}, Compression())
        for text, executable in ((b"1", False), (b"2", False), (b"1", True))
    )
    assert len({one.digest, two.digest, three.digest}) == 3
    assert len(list((tmp_path / "keys").glob("*.json"))) == 3
    kept = append.image(store, base, copied, {"app/a.py": File(b"1")}, Compression())
    assert kept == one


def test_the_configuration_is_the_bases_and_what_the_dockerfile_sets() -> None:
    base = {
        "architecture": "amd64",
        "config": {"Env": ["A=0", "PATH=/bin"], "Cmd": ["bash"], "WorkingDir": "/app"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:1"]},
    }
    read = append.read(COPIES)
    assert read
    made = json.loads(
        manifests.configuration(
            base,
            append.settings_of(base, read),
            [manifests.Added("sha256:2", "a copy")],
            EPOCH,
        )
    )
    assert made["architecture"] == "amd64"
    assert made["rootfs"] == {"type": "layers", "diff_ids": ["sha256:1", "sha256:2"]}
    assert made["config"] == {
        "Env": ["A=one two", "PATH=/bin", "B=3"],
        "WorkingDir": "/app",
        "User": "1000:1000",
        "Entrypoint": ["python", "-m", "trainer.task"],
        "Labels": {"title": "cpu", "kernels": "runs as an older minor"},
    }
