"""Dockerfiles: committed as rendered, clean, and the same on every machine."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import compatibility, image_yaml, lockfile
from builder.config.pins import Pin
from builder.core.errors import InputError
from builder.image import dockerfile
from builder.image.dockerfile import Rendered
from tests import ROOT

DIGEST = "sha256:" + "0" * 64
PUBLISHED: dict[str, object] = {"rootfs": None, "apt": {}, "wheels": {}}


def rendered(text: str, **lock: object) -> Rendered:
    """The Dockerfile of an image.yaml, on the lock of the target that is most like it."""
    spec = image_yaml.parse(text, ROOT / "images/probe/image.yaml")
    like = {"CPU": "cpu", "TPU": "tpu"}.get(spec.accelerator, "v100")
    changed = replace(lockfile.read(ROOT, like), **lock)  # type: ignore[arg-type]
    return dockerfile.render(spec, compatibility.resolve(spec), changed)


def instructions(text: str) -> list[str]:
    """The instructions of a Dockerfile without comments, each with its continued lines."""
    return re.findall(r"^[A-Z]+ (?:.*\\\n)*.*", text, re.MULTILINE)


def hadolint(*files: Path) -> tuple[int, str]:
    command = [Path(sys.executable).parent / "hadolint", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_what_is_committed_is_rendered_clean_and_one_linked_copy_onto_its_base() -> None:
    targets = dockerfile.load_all(ROOT)
    texts = dockerfile.texts(ROOT, targets)
    assert dockerfile.differences(ROOT, texts) == ()
    assert hadolint(*texts) == (0, "")
    for target in targets:
        assert target.base and target.copies_only
        lines = instructions(target.dockerfile)
        expects = ["ENV"] if target.spec.name != "cpu" else []  # the accelerator, the start hook
        keywords = [instruction.split()[0] for instruction in lines]
        assert keywords == ["ARG", "FROM", "COPY", *expects, "USER", "ENTRYPOINT", "LABEL"]
        assert lines[1] == f"FROM ${{REPOSITORY}}:{target.base.tag}"
        assert lines[2] == "COPY --link --chown=0:0 app /app", "a job cannot overwrite it"


def test_an_edited_dockerfile_is_seen_and_put_right(copy: Path) -> None:
    path = copy / "images/t4/Dockerfile"
    path.write_text(path.read_text().replace("USER 1000:1000", "USER 0:0"))
    texts = dockerfile.texts(copy, dockerfile.load_all(copy))
    assert dockerfile.differences(copy, texts) == ("images/t4/Dockerfile",)
    assert dockerfile.write(copy, texts) == ("images/t4/Dockerfile",)
    assert dockerfile.write(copy, texts) == ()


def test_what_does_not_concern_the_base_leaves_its_hash() -> None:
    plain = rendered("accelerator: CPU\nsize_budget: 1 GB\n")
    other = rendered(
        "accelerator: CPU\nsize_budget: 2 GB\n"
        "environment: {B: x, A: '1 2'}\nlabels: {team: vision}\n"
        "program: src/train:train.main\nsuite: program\nsmoke: [--steps=1, --data=a b]\n"
    )
    assert plain.base and other.base and other.config
    assert plain.base.tag == other.base.tag
    assert instructions(other.dockerfile)[-4:] == [
        'ENV A="1 2" \\\n    B="x"',
        "USER 1000:1000",
        'ENTRYPOINT ["python", "-m", "train.main"]',
        'LABEL org.opencontainers.image.title="probe" \\\n'
        '      team="vision" \\\n'
        '      training-image-factory.accelerator="CPU" \\\n'
        '      training-image-factory.kernels="native" \\\n'
        '      training-image-factory.smoke-arguments="--steps=1 --data=a b" \\\n'
        '      training-image-factory.suite="program" \\\n'
        '      training-image-factory.tensorflow="2.21.0"',
    ]
    assert list(other.config.environment.items()) == [("A", "1 2"), ("B", "x")]
    assert other.config.entrypoint == ("python", "-m", "train.main")


def test_a_published_base_is_left_to_buildkit(tmp_path: Path) -> None:
    base = f"us-docker.pkg.dev/vertex-ai/training/tf-gpu.2-17.py310@{DIGEST}"
    target = rendered(f"accelerator: CPU\nsize_budget: 5 GB\nbase: {base}\n", **PUBLISHED)
    assert target.base is None and not target.copies_only
    texts = instructions(target.dockerfile)
    assert texts[0] == f"FROM {base}"
    assert "RUN rm -rf /var/sitecustomize" in texts
    assert texts[-3:-1] == ["USER 1000:1000", 'ENTRYPOINT ["python3", "-m", "trainer.task"]']

    other = f"accelerator: CPU\nsize_budget: 5 GB\nbase: example.com/tf:2@{DIGEST}\n"
    keywords = [text.split()[0] for text in instructions(rendered(other, **PUBLISHED).dockerfile)]
    assert keywords == ["FROM", "COPY", "ENV", "ENV", "USER", "ENTRYPOINT", "LABEL"]

    extra = {lockfile.EXTRA: (Pin("pillow", "12.0.0", "a" * 64),)}
    installing = rendered(f"{other}apt: [libgl1]\n", **{**PUBLISHED, "wheels": extra})
    assert installing.dockerfile.count("\nRUN ") == 2
    (tmp_path / "Dockerfile").write_text(installing.dockerfile)
    assert hadolint(tmp_path / "Dockerfile") == (0, "")


def test_a_projects_own_template_is_left_to_buildkit_and_its_mistake_is_named(copy: Path) -> None:
    (copy / "templates").mkdir()
    assert dockerfile.load(copy, "cpu").copies_only, (
        "a folder without this template changes nothing"
    )
    own = copy / "templates/Dockerfile.j2"
    own.write_text((ROOT / "templates/Dockerfile.j2").read_text())
    assert dockerfile.load(copy, "cpu").copies_only, "a copy of the factory's own changes nothing"
    for text, error in (
        ("FROM ${REPOSITORY}:{{ base_tag }}\nRUN true\nUSER {{ user }}\n", None),
        ("FROM scratch\nUSER {{ usr }}\n", r"templates/Dockerfile\.j2.*'usr' is undefined"),
        ("FROM scratch\n{% if %}\n", r"templates/Dockerfile\.j2:2"),
    ):
        own.write_text(text)
        dockerfile._environment.cache_clear()
        if error:
            with pytest.raises(InputError, match=error):
                dockerfile.load(copy, "cpu")
            continue
        target = dockerfile.load(copy, "cpu")
        assert target.base and not target.copies_only
        assert instructions(target.dockerfile)[-1] == "USER 1000"
