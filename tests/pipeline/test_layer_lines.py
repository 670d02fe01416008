"""A pull request that changes a line of images/layers.lock; and layers that others made again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import CheckFailed
from builder.core.events import ignore
from builder.core.settings import Settings, TrustSettings
from builder.image import base, content_store, layers_lock
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.layers_lock import FILE, LayersLock, line_of
from builder.image.plan import Availability
from builder.pipeline import committed, layer_lines, make
from builder.trust import rebuilders
from tests.commands import git
from tests.conftest import Run
from tests.trust.signing import Pair, Repository

NOBODY = TrustSettings()


@pytest.fixture
def project(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This repository's targets on a branch of their own, where `builder` is called."""
    monkeypatch.chdir(copy)
    git(copy, "init", "-q", "--initial-branch", "main")
    git(copy, "add", ".")
    git(copy, "commit", "-qm", "all")
    git(copy, "switch", "-qc", "change")
    return copy


def problems(root: Path, **more: Any) -> list[str]:
    return list(layer_lines.problems(root, NOBODY, **more))


def line(lock: LayersLock, name: str) -> str:
    """The whole line of a layer."""
    key = next(key for key, known in lock.names.items() if known == name)
    return f"{line_of(lock.layers[key])} {name}\n"


def rewritten(root: Path, change: Callable[[str], str], commit: bool = True) -> None:
    """Change layers.lock, as anybody may in a pull request."""
    path = root / FILE
    text = path.read_text()
    path.write_text(change(text))
    assert path.read_text() != text
    if commit:
        git(root, "commit", "-qam", "a small change")


def with_other_digest(text: str) -> str:
    """The file with another digest in its first line."""
    key, kind, digest, rest = next(
        row for row in text.splitlines() if not row.startswith("#")
    ).split(" ", 3)
    return text.replace(f"{key} {kind} {digest} {rest}", f"{key} {kind} sha256:{'e' * 64} {rest}")


@pytest.mark.parametrize("commit", [True, False])
def test_a_changed_digest_is_found_by_the_branch_that_it_goes_into(
    project: Path, commit: bool, builder: Run
) -> None:
    assert problems(project) == []
    rewritten(project, with_other_digest, commit)
    (said,) = problems(project)
    assert (
        f"has sha256:{'e' * 64}, and sha256:" in said and "what a line says never changes" in said
    )
    code, out, _ = builder("check")
    assert code == 4 and "never changes" in out


def test_every_field_of_a_line_counts(project: Path) -> None:
    lock = layers_lock.of(project)
    layer = next(iter(lock.layers.values()))
    _, *fields = line_of(layer).split(" ")
    for field in fields:
        other = {"zstd": "gzip"}.get(field) or field[:-1] + ("0" if field[-1] != "0" else "1")
        path = project / FILE
        path.write_text(path.read_text().replace(f" {field} ", f" {other} ", 1))
        assert len(problems(project)) >= 1
        git(project, "checkout", "-q", ".")


def test_on_the_branch_itself_the_commit_before_counts(project: Path) -> None:
    git(project, "switch", "-q", "main")
    rewritten(project, with_other_digest)
    assert any("never changes" in said for said in problems(project))
    git(project, "commit", "-q", "--allow-empty", "-m", "next")
    assert problems(project) == [], "it has been on the branch for a while"


def test_a_branch_that_is_behind_is_compared_with_the_tip_as_well(project: Path) -> None:
    """The key is new on both branches, and each has another digest for it."""
    row = line(layers_lock.of(project), "environment")
    rewritten(project, lambda text: text.replace(row, ""))
    git(project, "branch", "-f", "main")
    git(project, "switch", "-q", "main")
    rewritten(project, lambda text: text + row)
    git(project, "switch", "-q", "change")
    rewritten(project, lambda text: text + with_other_digest(row))
    (said,) = problems(project)
    assert "never changes" in said


def test_a_line_that_nothing_needs_and_a_name_of_another_key_are_found(project: Path) -> None:
    lock = layers_lock.of(project)
    first, second = (line(lock, name) for name in ("2 small wheels of cuda.lock", "environment"))
    surplus = "0" * 64 + first[64:]
    rewritten(project, lambda text: text + surplus)
    assert problems(project) == [
        f"{FILE}: 2 small wheels of cuda.lock: no target needs the key {'0' * 64}: builder lock"
        " drops its line"
    ]
    renamed = second.replace(" environment", " tensorflow 2.21.0")
    rewritten(project, lambda text: text.replace(surplus, "").replace(second, renamed))
    assert problems(project) == [
        f"{FILE}: the key {second[:64]} is of environment, not of tensorflow 2.21.0"
    ]


def test_a_branch_that_is_not_here_is_no_pass(project: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="origin/main and this commit have no commit in common"):
        problems(project, against="origin/main")
    shallow = tmp_path / "shallow"
    git(project, "commit", "-q", "--allow-empty", "-m", "one more")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{project}", str(shallow))
    with pytest.raises(CheckFailed, match="no commit in common"):
        problems(shallow, against="origin/main")
    for folder in (project / ".git", shallow / ".git"):
        shutil.rmtree(folder)
    assert problems(project) == [], "outside of git there is nothing to compare with"


def test_what_a_build_left_is_no_part_of_a_commit(project: Path) -> None:
    """`push` believes build/<target>/receipt.json, which is this machine's."""
    for name in ("image.json", "receipt.json"):
        path = project / "build" / "v100" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    assert not [said for said in committed.problems(project) if said.startswith("build/")]
    git(project, "add", "--force", "build")
    assert [said.split(":")[0] for said in committed.problems(project) if "build/" in said] == [
        "build/v100/image.json",
        "build/v100/receipt.json",
    ]


# --- made again -----------------------------------------------------------------------------------


def test_the_layers_of_new_lines_are_made_again_and_no_others(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = layers_lock.of(project)
    rows = [line(lock, name) for name in ("2 small wheels of cuda.lock", "environment")]
    git(project, "switch", "-q", "main")
    rewritten(project, lambda text: text.replace(rows[0], "").replace(rows[1], ""))
    git(project, "switch", "-q", "change")
    git(project, "rebase", "-q", "main")
    rewritten(project, lambda text: text + "".join(rows))
    keys = layer_lines.new(project)
    assert keys == {row[:64] for row in rows}
    bases = list(committed.bases(project).values())
    asked: list[set[str]] = []

    def assemble(plans: Any, available: Any, store: Any, *_: Any) -> None:
        assert not available.offered and not list(store.folder.rglob("*"))
        asked.append(set(available.missing))

    monkeypatch.setattr(base, "assemble", assemble)
    made = layer_lines.make(project, keys, Settings(), pytest.fail, ignore)
    assert {layer.key for layer in made} == keys
    roots = {plan.layers[0].key for plan in bases}
    assert set().union(*asked) - roots == keys, "and the rootfs below an environment"
    assert sum(len(keys_of & keys) for keys_of in asked) == len(keys), "each once"
    with pytest.raises(CheckFailed, match="no target needs it"):
        layer_lines.make(project, frozenset({"0" * 64}), Settings(), pytest.fail, ignore)


@pytest.mark.slow
@pytest.mark.network
def test_a_new_line_with_another_digest_is_found_by_whoever_makes_it(
    project: Path, builder: Run
) -> None:
    """The real wheels of one small layer, without an engine, a cache of layers or a registry."""
    row = line(layers_lock.of(project), "2 small wheels of cuda.lock")
    git(project, "switch", "-q", "main")
    rewritten(project, lambda text: text.replace(row, ""))
    git(project, "switch", "-q", "change")
    git(project, "rebase", "-q", "main")
    rewritten(project, lambda text: text + row)
    code, out, err = builder("rebuild", "--json")
    assert code == 0, err
    assert [made["key"] for made in json.loads(out)] == [row[:64]]
    rewritten(project, lambda text: text.replace(row, with_other_digest(row)), commit=False)
    code, _, err = builder("rebuild")
    assert code == 4 and f"layers.lock says sha256:{'e' * 64}" in err


@pytest.mark.slow
@pytest.mark.network
def test_a_layer_that_the_registry_has_lost_is_made_from_packages(
    project: Path, repository: Repository, tmp_path: Path
) -> None:
    lock, store = layers_lock.of(project), ContentStore(tmp_path / "store")
    key = line(lock, "2 small wheels of cuda.lock")[:64]
    plan = next(
        plan
        for plan in committed.bases(project).values()
        if any(planned.key == key for planned in plan.layers)
    )
    there = {layer.key: lock.layers[layer.key] for layer in plan.layers if layer.key != key}
    available = Availability(there, {key: lock.layers[key]}, {})
    settings = repository.settings()
    (made,) = base.assemble([plan], available, store, settings, lock, pytest.fail)
    assert made == base.committed(plan, lock) and store.find(key) == lock.layers[key]


# --- k of n ---------------------------------------------------------------------------------------


def signed_by(root: Path, layers: list[Layer], *pairs: Pair) -> None:
    for pair in pairs:
        assert rebuilders.sign(root / "images" / rebuilders.FOLDER, layers, pair.signer)


def asks(count: int, *pairs: Pair) -> TrustSettings:
    return TrustSettings(layers=count, rebuilders=tuple(str(pair.public) for pair in pairs))


def test_a_line_counts_that_enough_rebuilders_signed(
    project: Path, ours: Pair, other: Pair, tmp_path: Path
) -> None:
    lock = layers_lock.of(project)
    every, trust = list(lock.layers.values()), asks(2, ours, other)
    assert not rebuilders.required(lock, NOBODY).unsigned
    signed_by(project, every, ours)
    assert rebuilders.required(lock, trust).unsigned == lock.layers.keys()
    (said,) = layer_lines.problems(project, trust)
    assert f"{len(every)} lines, such as that of " in said and "fewer than 2 rebuilders" in said
    signed_by(project, every[1:], other)
    assert rebuilders.required(lock, trust).unsigned == {every[0].key}
    signed_by(project, every[:1], other)
    assert not rebuilders.required(lock, trust).unsigned
    assert list(layer_lines.problems(project, trust)) == []
    folder = project / "images" / rebuilders.FOLDER
    assert rebuilders.sign(folder, every, other.signer) is None, "it has signed them all"

    layer = every[0]
    lock.layers[layer.key] = replace(layer, blob=replace(layer.blob, digest=f"sha256:{'e' * 64}"))
    assert rebuilders.required(lock, trust).unsigned == {layer.key}, "they signed another digest"
    copied = tmp_path / "copy.pub"
    copied.write_bytes(ours.public.read_bytes())
    twice = TrustSettings(layers=2, rebuilders=(str(ours.public), str(copied)))
    assert rebuilders.required(lock, twice).unsigned == lock.layers.keys(), (
        "one key is one rebuilder"
    )


def test_a_layer_that_too_few_signed_is_taken_from_nowhere(
    project: Path, ours: Pair, other: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = make.prepare(project, "cpu")
    plan = target.base
    assert plan
    store, layers = content_store.of_this_machine(), target.layers.whole(plan)
    assert layers
    monkeypatch.setattr(type(store), "find", lambda _, key: target.layers.layers.get(key))
    trust = asks(2, ours, other)
    signed_by(project, list(layers), ours)
    signed_by(project, list(layers[1:]), other)
    known = rebuilders.required(target.layers, trust)
    available = base.look_up([plan], store, Settings(), known)
    assert available.missing.keys() == {layers[0].key}
    assert available.stored.keys() == {layer.key for layer in layers[1:]}
    assert base.committed(plan, known) is None and base.committed(plan, target.layers)


def test_signatures_of_what_is_gone_go_with_it_and_odd_files_say_nothing(
    project: Path, ours: Pair, other: Pair
) -> None:
    lock = layers_lock.of(project)
    first, second, *_ = lock.layers.values()
    for layer in (first, second):
        signed_by(project, [layer], ours)
    folder = project / "images" / rebuilders.FOLDER
    for name, content in (("a", b""), ("b", b"{}"), ("c", b"[" * 100_000), ("d", b"\xff")):
        (folder / f"{name}.json").write_bytes(content)
    (folder / "e.json").symlink_to("/dev/zero")
    (folder / "f.json").mkdir()
    signers = rebuilders.signed(folder, (ours.signer.public, other.signer.public))
    assert signers.keys() == {line_of(first), line_of(second)}
    del lock.layers[first.key]
    rebuilders.drop(lock)
    assert rebuilders.signed(folder, (ours.signer.public,)).keys() == {line_of(second)}


@pytest.mark.parametrize(("layers", "names"), [(1, ()), (2, ("a.pub",)), (2, ("a.pub", "a.pub"))])
def test_more_signatures_than_rebuilders_are_no_rule(layers: int, names: Any) -> None:
    with pytest.raises(ValueError, match="layers asks for"):
        TrustSettings(layers=layers, rebuilders=names)


@pytest.mark.usefixtures("project")
def test_rebuild_signs_by_a_key_that_is_named(builder: Run) -> None:
    for words, said in (((), "no key is named to sign with"), (("v100",), "are about layers")):
        code, _, err = builder("rebuild", *words, "--sign")
        assert code == 2 and said in err
