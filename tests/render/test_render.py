"""Dockerfiles: committed as rendered, clean, the same on every machine; changes told in layers."""

import shutil
import subprocess
import sys
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
    (tmp_path / "Dockerfile").write_text(rendered(text, change).dockerfile)
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", *tmp_path.iterdir()],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


# --- what a Dockerfile says ----------------------------------------------------------------------


def tag(found: Rendered) -> str:
    assert found.base is not None
    return found.base.tag


def test_what_does_not_concern_the_base_leaves_its_hash() -> None:
    plain = rendered("accelerator: CPU\nsize_budget: 1 GB\n")
    other = rendered(
        "accelerator: CPU\nsize_budget: 2 GB\n"
        "environment: {B: x, A: '1 2'}\nlabels: {team: vision}\n"
        "trainer: {package: src/train, module: train.main}\n"
    )
    assert tag(plain) == tag(other)
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
        said = [one.split()[0] for one in found]
        expects = ["ENV"] if name != "cpu" else []  # what it expects, and its start hook
        assert said == ["ARG", "FROM", "COPY", *expects, "USER", "ENTRYPOINT", "LABEL"]
        assert found[2] == "COPY --link --chown=0:0 app /app", "a job cannot overwrite it"


def test_a_dockerfile_names_its_base() -> None:
    found = rendered("accelerator: CPU\nsize_budget: 1 GB\n")
    assert f"FROM ${{REPOSITORY}}:{tag(found)}" in instructions(found.dockerfile)


def test_a_published_base_is_not_assembled() -> None:
    base = f"us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-17.py310@{DIGEST}"
    found = rendered(
        f"accelerator: CPU\nsize_budget: 5 GB\nbase: {base}\n",
        {"root": None, "apt": {}, "wheels": {}},
    )
    assert found.base is None
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
    own.write_text("FROM ${REPOSITORY}:{{ base_tag }}\nUSER {{ user }}\n")
    assert instructions(render.render_target(copy, "cpu").dockerfile)[1] == "USER 1000"
    own.write_text("FROM scratch\nUSER {{ usr }}\n")
    jinja._environment.cache_clear()
    with pytest.raises(InputError, match=r"templates/Dockerfile\.j2.*'usr' is undefined"):
        render.render_target(copy, "cpu")
    own.write_text("FROM scratch\n{% if %}\n")
    jinja._environment.cache_clear()
    with pytest.raises(InputError, match=r"templates/Dockerfile\.j2:2"):
        render.render_target(copy, "cpu")
