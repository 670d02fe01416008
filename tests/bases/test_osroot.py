"""The OS root: planned from a lock alone, made with whatever engine answers here."""

from dataclasses import replace
from pathlib import Path

from builder.bases import osroot
from builder.bases.layer import Compression
from builder.bases.osroot import Root
from builder.lock import model

ROOT = Path(__file__).resolve().parents[2]


def locked() -> Root:
    lock = model.read(ROOT, "cpu")
    assert lock.root is not None
    return Root(lock.root.suite, lock.root.packages, lock.apt[model.APT])


def test_the_key_covers_every_byte_and_no_place() -> None:
    root = locked()
    key = root.plan(Compression()).key
    first = root.added[0]
    moved = replace(first, time="20200101T000000Z", archive="debian")
    assert replace(root, added=(moved, *root.added[1:])).plan(Compression()).key == key
    others = [
        root.plan(Compression("gzip", 6)).key,
        replace(root, added=(replace(first, sha256="f" * 64), *root.added[1:]))
        .plan(Compression())
        .key,
        replace(root, added=root.added[1:]).plan(Compression()).key,
        # which packages are unpacked first decides who configures the others
        replace(root, added=root.added[1:], required=(*root.required, first))
        .plan(Compression())
        .key,
    ]
    assert len({key, *others}) == 5


def test_a_plan_says_what_is_in_it_and_what_it_downloads() -> None:
    plan = locked().plan(Compression())
    assert plan.name == "Debian bookworm"
    assert "python3 3.11.2-1+b1" in plan.packages
    assert plan.download == sum(one.bytes for one in locked().packages)
    assert osroot.PLATFORM == "linux/amd64"
