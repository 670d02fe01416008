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
from builder.lock.model import Lock
from builder.lock.pins import Pin
from builder.render import changes, committed, jinja
from builder.render import dockerfiles as render
from builder.render.changes import RebuiltLayer
from builder.render.dockerfiles import Rendered
from builder.spec import catalogue, compatibility

ROOT = Path(__file__).parents[2]
TARGETS = catalogue.targets(ROOT)
DIGEST = "sha256:" + "0" * 64


def commit(root: Path) -> None:
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "locked"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)


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
        "apt": {**held.apt, model.APT_EXTRA: {"libgl1": "1"}} if own else {},
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
    packages = {**held.root.packages, "bash": "6"}
    cuda = (replace(held.wheels[model.CUDA][0], sha256="f" * 64), *held.wheels[model.CUDA][1:])
    apt = {**held.apt, model.APT: {**held.apt[model.APT], "python3": "4"}}
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
        assert found[2] == "COPY --link --chown=1000:1000 app /app"


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


# --- a change, told in layers --------------------------------------------------------------------


def test_instructions_are_joined_and_comments_left_out() -> None:
    text = (
        "# a comment\nFROM debian\n\nRUN --mount=type=bind,source=a.lock,target=/a \\\n"
        "    --network=none <<'END'\n# inside\nx\nEND\nUSER 1\n"
    )
    found = list(changes.instructions(text, {"a.lock": "content", "b.lock": "other"}))
    assert [(one.keyword, one.line, dict(one.reads)) for one in found] == [
        ("FROM", 2, {}),
        ("RUN", 4, {"a.lock": "content"}),
        ("USER", 9, {}),
    ]
    assert found[1].text.endswith("# inside\nx\nEND")


def test_no_change_is_no_change(copy: Path) -> None:
    commit(copy)
    assert changes.changes(copy, "v100") == ()


def test_an_environment_variable_rebuilds_nothing(copy: Path) -> None:
    commit(copy)
    path = copy / "images/v100/image.yaml"
    path.write_text(f"{path.read_text()}\nenvironment: {{TF_CPP_MIN_LOG_LEVEL: '1'}}\n")
    [change] = changes.changes(copy, "v100")
    assert (change.file, change.change) == ("images/v100/Dockerfile", "added")
    assert change.instruction == 'ENV TF_CPP_MIN_LOG_LEVEL="1"'
    assert change.rebuilds == ()


def test_another_cudnn_rebuilds_its_layer_and_the_ones_above(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "v100")
    other = {"nvidia-cudnn-cu12": "9.10.2.21"}
    model.write(copy, with_versions(held, other))
    base, image = changes.changes(copy, "v100")
    assert base.instruction == "RUN install cuda.lock"
    assert base.detail == ("nvidia-cudnn-cu12 9.3.0.75 -> 9.10.2.21",)
    sizes = {n: sum(p.bytes or 0 for p in pins) for n, pins in held.wheels.items()}
    assert base.rebuilds == (
        RebuiltLayer("RUN install cuda.lock", sizes[model.CUDA]),
        RebuiltLayer("RUN install tensorflow.lock", sizes[model.TENSORFLOW]),
        RebuiltLayer("RUN install extra.lock", sizes[model.EXTRA]),
    )
    assert image.instruction.startswith("FROM ${REPOSITORY}:base-")
    assert image.rebuilds == ()  # the trainer's copy is linked


def test_another_python_package_leaves_cuda_alone(copy: Path) -> None:
    commit(copy)
    model.write(copy, with_versions(model.read(copy, "v100"), {"rich": "14.0.0"}))
    base, _ = changes.changes(copy, "v100")
    assert [layer.instruction for layer in base.rebuilds] == [
        "RUN install tensorflow.lock",
        "RUN install extra.lock",
    ]


def test_apt_rebuilds_everything_and_how_much_is_not_known(copy: Path) -> None:
    commit(copy)
    held = model.read(copy, "cpu")
    apt = {model.APT: {**held.apt[model.APT], "python3": "3.11.9-1"}}
    model.write(copy, replace(held, apt=apt))
    base, _ = changes.changes(copy, "cpu")
    assert base.detail == (f"python3 {held.apt[model.APT]['python3']} -> 3.11.9-1",)
    assert base.rebuilds[0] == RebuiltLayer("RUN install apt.lock", None)
    assert [layer.instruction for layer in base.rebuilds][-2:] == [
        "RUN install tensorflow.lock",
        "RUN install extra.lock",
    ]


@pytest.mark.parametrize(
    ("instruction", "rebuilds"),
    [
        ("LABEL team=vision", ()),
        ('ENTRYPOINT ["python"]', ()),
        ("ENV A=1", (RebuiltLayer("RUN make", None), RebuiltLayer("COPY a /a", None))),
        ("USER 1000", (RebuiltLayer("RUN make", None), RebuiltLayer("COPY a /a", None))),
    ],
)
def test_what_makes_later_layers_anew(instruction: str, rebuilds: tuple[RebuiltLayer, ...]) -> None:
    rest = "RUN make\nCOPY a /a\nCOPY --link b /b\n"
    old, new = (
        tuple(changes.instructions(f"FROM debian\n{first}{rest}", {}))
        for first in ("", f"{instruction}\n")
    )
    [change] = changes._changes("Dockerfile", old, new)
    assert (change.change, change.rebuilds) == ("added", rebuilds)


def test_outside_of_git_the_files_that_lie_there_are_compared(copy: Path) -> None:
    path = copy / "images/cpu/image.yaml"
    path.write_text(f"{path.read_text()}\nlabels: {{team: vision}}\n")
    [change] = changes.changes(copy, "cpu")
    assert (change.change, change.rebuilds) == ("changed", ())
    assert change.instruction.startswith("LABEL")


def test_a_commit_that_is_not_there(copy: Path) -> None:
    commit(copy)
    with pytest.raises(InputError, match="'v9' is no commit"):
        changes.changes(copy, "cpu", since="v9")


def with_versions(held: Lock, versions: dict[str, str]) -> Lock:
    """The lock with other versions of some packages."""
    wheels = {
        name: tuple(replace(pin, version=versions.get(pin.name, pin.version)) for pin in pins)
        for name, pins in held.wheels.items()
    }
    return replace(held, wheels=wheels)
