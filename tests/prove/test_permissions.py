"""The check `permissions`, on images of a few files."""

from __future__ import annotations

from typing import Any

import pytest

from builder.prove.checks import permissions
from builder.prove.image import Image
from tests.prove.reading import SITE, Files, layer, plain, read

USER = 1234
BASE: Files = {
    "/usr/bin/su": (b"x", 0o4755, 0),
    "/usr/bin/bash": (b"x", 0o755, 0),
    "/tmp/": (b"", 0o1777, 0),
    "/usr/bin/": (b"", 0o755, 0),
    "/app/": (b"", 0o755, 0),
    "/app/trainer/": (b"", 0o755, 0),
    "/app/trainer/task.py": (b"x", 0o644, 0),
    "/etc/passwd": (b"x", 0o644, 0),
}


def messages(image: Image) -> list[str]:
    defects, _ = permissions.run(image)
    assert all(defect.fix for defect in defects)
    return [defect.message for defect in defects]


def ours(*above: bytes, changed: Files | None = None, **config: Any) -> list[str]:
    """Of an image of ours; and the same of others where nothing depends on the base."""
    base = layer({**BASE, **(changed or {})}, {"/bin": "usr/bin"})
    config = {"User": f"{USER}:{USER}", "Env": ["PATH=/bin:/usr/local/bin"], **config}
    return messages(read(base, *above, target="cpu", **config))


def test_debians_own_programs_are_let_through_and_capabilities_count() -> None:
    assert ours() == []
    assert ours(Env=["PATH=/bin:/opt/none/bin"]) == [], "only root could make it"
    assert ours(User="0") == ["the image runs as root: its outputs would belong to root"]
    ping = layer({**BASE, "/usr/bin/ping": (b"x", 0o755, 0)}, capable="/usr/bin/ping")
    above = layer({"/.tools/helper": (b"x", 0o2755, 0)})
    message = "programs that run with another user's rights: /.tools/helper"
    assert messages(read(ping, above, target="cpu", User="1:1")) == [f"{message}, /usr/bin/ping"]
    assert messages(read(ping, above, User="1:1")) == [message], "distributions' ping has it"


@pytest.mark.parametrize("name", ["helper", "bash", "su"])
def test_a_set_user_id_program_that_no_locked_package_has(name: str) -> None:
    above = layer({f"/usr/bin/{name}": (b"another", 0o4755, 0)})
    message = f"programs that run with another user's rights: /usr/bin/{name}"
    assert ours(above) == [message]
    assert messages(read(above, User="1:1")) == ([] if name == "su" else [message])


def test_what_everybody_may_change_among_programs_and_modules() -> None:
    writable = "everybody may write to what the image runs: "
    module = {f"{SITE}/numpy.py": (b"x", 0o666, 0), "/opt/unsearched": (b"x", 0o666, 0)}
    assert ours(changed=module) == [f"{writable}{SITE}/numpy.py"]
    assert ours(changed={f"{SITE}/": (b"", 0o777, 0)}) == [f"{writable}{SITE}"]
    assert ours(changed={"/usr/bin/": (b"", 0o777, 0)}) == [f"{writable}/usr/bin"]
    assert ours(layer({"/usr/bin/": (b"", 0o777, 0)})) == [f"{writable}/usr/bin"], (
        "the upper counts"
    )
    for path in ("/tmp", "/tmp/bin/sub"):
        assert ours(Env=[f"PATH={path}"]) == [f"{writable}/tmp"]
    assert ours(Env=["PATH=/bin", "PYTHONPATH=/tmp/modules"]) == [f"{writable}/tmp"]


@pytest.mark.timeout(30)
def test_an_image_without_one_file_is_looked_at_and_passes() -> None:
    assert messages(read(layer({}), User="1:1", Env=["PATH=/bin"])) == []


def test_a_program_that_the_images_user_can_overwrite() -> None:
    owned = dict.fromkeys(("/app/", "/app/trainer/", "/app/trainer/task.py"), (b"", 493, USER))
    overwrites = f"the image's user {USER} can overwrite its program: /app"
    assert ours(changed=owned) == [f"{overwrites}, /app/trainer, /app/trainer/task.py"]
    assert ours(changed={"/app/": (b"", 0o777, 0)}) == [overwrites]
    group = {"/app/": (b"", 0o775, USER)}
    assert ours(changed=group, User=f"1:{USER}")[0].endswith("overwrite its program: /app")


def test_a_user_who_may_write_to_the_accounts_or_the_loaders_folders_becomes_root() -> None:
    changes = f"the image's user {USER} can change accounts or the loader: "
    assert ours(changed={"/etc/passwd": (b"x", 0o666, 0)})[0].startswith(f"{changes}/etc/passwd")
    folder = {"/usr/local/lib/": (b"", 0o755, USER), **plain("/opt/own/liba.so.1")}
    assert ours(changed=folder)[0].startswith(f"{changes}/usr/local/lib:")
    own = {**plain("/opt/own/liba.so.1"), "/opt/own/": (b"", 0o777, 0)}
    assert ours(changed=own)[0].startswith(f"{changes}/opt/own:")
    base = layer({**BASE, **own})
    assert messages(read(base, User="1:1")) == [], "others' users may own their environment"
