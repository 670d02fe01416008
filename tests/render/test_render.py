"""Dockerfiles: committed as rendered, clean, the same on every machine; changes told in layers."""

import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.lock import model
from builder.lock.pins import Pin
from builder.render import changes, committed, jinja
from builder.render import dockerfiles as render
from builder.render.dockerfiles import Rendered
from builder.spec import catalogue, compatibility

ROOT = Path(__file__).parents[2]
TARGETS = catalogue.targets(ROOT)
DIGEST = "sha256:" + "0" * 64


def rendered(text: str, change: "dict[str, object] | None" = None) -> Rendered:
    """The Dockerfiles of an image.yaml, on the lock of the target that is most like it."""
    spec = catalogue.parse(text, ROOT / "images/probe/image.yaml")
    like = {"CPU": "cpu", "TPU": "tpu"}.get(spec.accelerator, "v100")
    held = replace(model.read(ROOT, like), **(change or {}))
    return render.render(spec, compatibility.resolve(spec), held)


def instructions(text: str | None) -> list[str]:
    return [one.text for one in changes.instructions(text or "", {})]


# --- the committed files -------------------------------------------------------------------------


def test_what_is_committed_is_what_would_be_rendered() -> None:
    assert committed.check(ROOT) == ()


def test_an_edited_dockerfile_is_seen_and_put_right(copy: Path) -> None:
    path = copy / "images/t4/Dockerfile"
    path.write_text(path.read_text().replace("USER 1000:1000", "USER 0:0"))
    [drift] = committed.check(copy)
    assert drift.file == "images/t4/Dockerfile"
    assert "-USER 0:0\n+USER 1000:1000\n" in drift.diff
    assert committed.write(copy) == (path,)
    assert committed.check(copy) == ()
    assert committed.write(copy) == ()


@pytest.mark.parametrize("name", TARGETS)
def test_hadolint_finds_nothing(name: str) -> None:
    files = sorted((ROOT / "images" / name).glob("*Dockerfile"))
    assert files
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", *files], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "text",
    [
        "accelerator: V100\nsize_budget: 3 GB\n",
        "accelerator: CPU\nsize_budget: 1 GB\napt: [libgl1]\nrequirements: [pillow]\n",
        f"accelerator: CPU\nsize_budget: 1 GB\napt: [libgl1]\nbase: example.com/tf:2@{DIGEST}\n",
    ],
)
def test_hadolint_finds_nothing_in_other_shapes(tmp_path: Path, text: str) -> None:
    extra = {model.EXTRA: (Pin("pillow", "12.0.0", "a" * 64),)}
    held = model.read(ROOT, "cpu")
    own = "base:" not in text
    change: dict[str, object] = {
        "wheels": {**held.wheels, **extra} if own else extra,
        "apt": {**held.apt, model.APT_EXTRA: held.apt[model.APT][:1]} if own else {},
        "root": held.root if own else None,
    }
    for name, content in rendered(text, change).files.items():
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", *tmp_path.iterdir()],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_all_targets_are_resolved_and_rendered_at_once() -> None:
    render.render_target(ROOT, TARGETS[0])  # templates compiled, tables read: once a process
    began = time.perf_counter()
    for name in TARGETS:
        render.render_target(ROOT, name)
    assert time.perf_counter() - began < 0.1


# --- what a Dockerfile says ----------------------------------------------------------------------


def test_bases_of_equal_content_are_one() -> None:
    hashes = {name: render.render_target(ROOT, name).base_hash for name in TARGETS}
    assert hashes["v100"] == hashes["t4"]
    assert hashes["v100"] != hashes["h100"]  # other device code stays: tests/spec/test_prune.py
    assert len(set(hashes.values())) == 6  # V100 and T4 share one
    for name in TARGETS:
        text = render.render_target(ROOT, name).base_dockerfile
        assert text is not None
        assert f'"{name}"' not in text
        assert "accelerator" not in text


def test_the_hash_covers_locks_the_os_root_and_the_dockerfile() -> None:
    text = "accelerator: V100\nsize_budget: 3 GB\n"
    held = model.read(ROOT, "v100")
    assert held.root is not None
    packages = (replace(held.root.packages[0], sha256="f" * 64), *held.root.packages[1:])
    cuda = (replace(held.wheels[model.CUDA][0], sha256="f" * 64), *held.wheels[model.CUDA][1:])
    apt = {**held.apt, model.APT: held.apt[model.APT][1:]}
    changes: list[dict[str, object]] = [
        {},
        {"wheels": {**held.wheels, model.CUDA: cuda}},
        {"apt": apt},
        {"root": replace(held.root, packages=packages)},
        {"root": replace(held.root, digest=DIGEST)},
    ]
    hashes = [rendered(text, change).base_hash for change in changes]
    hashes.append(rendered(text + "user: 1001\n").base_hash)
    assert len(set(hashes)) == len(hashes)


def test_what_does_not_concern_the_base_leaves_its_hash() -> None:
    plain = rendered("accelerator: CPU\nsize_budget: 1 GB\n")
    other = rendered(
        "accelerator: CPU\nsize_budget: 2 GB\n"
        "environment: {B: x, A: '1 2'}\nlabels: {team: vision}\n"
        "trainer: {package: src/train, module: train.main}\n"
    )
    assert plain.base_hash == other.base_hash
    assert instructions(other.dockerfile)[-4:] == [
        'ENV A="1 2" \\\n    B="x"',
        "USER 1000:1000",
        'ENTRYPOINT ["python", "-m", "train.main"]',
        'LABEL org.opencontainers.image.title="probe" \\\n'
        '      team="vision" \\\n'
        '      training-image-factory.accelerator="CPU" \\\n'
        '      training-image-factory.kernels="native" \\\n'
        '      training-image-factory.tensorflow="2.21.0"',
    ]


def test_the_training_image_is_one_linked_layer() -> None:
    for name in TARGETS:
        text = render.render_target(ROOT, name).dockerfile
        found = instructions(text)
        assert [one.split()[0] for one in found] == [
            "ARG", "FROM", "COPY", "USER", "ENTRYPOINT", "LABEL"
        ]  # fmt: skip
        assert found[2] == "COPY --link --chown=0:0 app /app", "a job cannot overwrite it"


def test_secrets_are_mounts_and_nothing_else() -> None:
    text = render.render_target(ROOT, "v100").base_dockerfile or ""
    for one in changes.instructions(text, {}):
        if one.keyword != "RUN":
            assert "secret" not in one.text
    assert not re.search(r"https?:", text)


def test_a_resolved_digest_is_what_the_base_is_made_from() -> None:
    held = model.read(ROOT, "cpu")
    assert held.root is not None
    text = "accelerator: CPU\nsize_budget: 1 GB\n"
    found = rendered(text, {"root": replace(held.root, digest=DIGEST)}).base_dockerfile
    assert instructions(found)[0] == f"FROM debian:bookworm-slim@{DIGEST}"
    assert f'training-image-factory.root="debian:bookworm-slim@{DIGEST}"' in (found or "")


def test_a_published_base_has_one_dockerfile() -> None:
    base = f"us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-17.py310@{DIGEST}"
    found = rendered(
        f"accelerator: CPU\nsize_budget: 5 GB\nbase: {base}\n",
        {"root": None, "apt": {}, "wheels": {}},
    )
    assert (found.base_dockerfile, found.base_hash) == (None, None)
    texts = instructions(found.dockerfile)
    assert texts[0] == f"FROM {base}"
    assert "RUN rm -rf /var/sitecustomize" in texts
    assert texts[-3:-1] == ["USER 1000:1000", 'ENTRYPOINT ["python3", "-m", "trainer.task"]']


def test_a_published_base_is_not_looked_into_where_nothing_is_installed() -> None:
    found = rendered(
        f"accelerator: CPU\nsize_budget: 5 GB\nbase: example.com/tf:2@{DIGEST}\n",
        {"root": None, "apt": {}, "wheels": {}},
    )
    keywords = [one.keyword for one in changes.instructions(found.dockerfile, {})]
    assert keywords == ["FROM", "COPY", "ENV", "ENV", "USER", "ENTRYPOINT", "LABEL"]


def test_a_projects_own_template_wins_and_its_mistake_is_named(copy: Path) -> None:
    shutil.rmtree(copy / "templates")  # What a project has none of is the factory's.
    (copy / "templates").mkdir()
    own = copy / "templates/Dockerfile.j2"
    own.write_text("FROM ${REPOSITORY}:base-{{ base_hash }}\nUSER {{ user }}\n")
    assert instructions(render.render_target(copy, "cpu").dockerfile)[1] == "USER 1000"
    assert render.render_target(copy, "cpu").base_dockerfile is not None
    own.write_text("FROM scratch\nUSER {{ usr }}\n")
    jinja._environment.cache_clear()
    with pytest.raises(InputError, match=r"templates/Dockerfile\.j2.*'usr' is undefined"):
        render.render_target(copy, "cpu")
    own.write_text("FROM scratch\n{% if %}\n")
    jinja._environment.cache_clear()
    with pytest.raises(InputError, match=r"templates/Dockerfile\.j2:2"):
        render.render_target(copy, "cpu")
