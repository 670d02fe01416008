"""Locks: what is kept, what is refused, why a lock is stale; and uv against the real index."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from builder.config import compatibility, image_yaml, lockfile, locking, network, pins, uv
from builder.config.debian_packages import DebianPackage
from builder.config.image_yaml import ImageSpec
from builder.config.pins import Pin
from builder.config.stack import Stack
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.image import download
from tests import ROOT
from tests.emulators.answers import serving
from tests.emulators.index import simple

LIBGOMP = DebianPackage(
    "libgomp1", "12.2.0-14", "debian", "20260712T000000Z", "pool/libgomp1.deb", "1" * 64, 116128
)


def nothing_new(suite: str, wanted: object, installed: object) -> list[tuple[DebianPackage, ...]]:
    """An apt for locks that need no new Debian package."""
    raise AssertionError(f"apt was asked for {wanted} of {suite}")


def lock(
    root: Path, spec: ImageSpec, stack: Stack, apt: locking.Apt = nothing_new, **more: Any
) -> lockfile.Lock:
    return locking.lock(root, spec, stack, apt, **more)


def target(root: Path, name: str, text: str | None = None) -> tuple[ImageSpec, Stack]:
    """The spec and stack of a target, after `text` is written as its image.yaml."""
    if text is not None:
        files.write(root / "images" / name / "image.yaml", text)
    spec = image_yaml.load(root, name)
    return spec, compatibility.resolve(spec)


# --- the committed locks -------------------------------------------------------------------------


def test_the_committed_locks_as_a_whole() -> None:
    for path in (ROOT / "images").rglob("*.lock"):
        assert "://" not in path.read_text(), "a lock names no index and no mirror"
    locks = {name: lockfile.read(ROOT, name) for name in image_yaml.targets(ROOT)}
    for target_name, lock in locks.items():
        spec, stack = target(ROOT, target_name)
        assert lockfile.check(ROOT, spec, stack)[1] == ()
        for package, version in {**stack.constraints, stack.distribution: stack.release}.items():
            assert lock.packages[package].version == version
        names = [pin.name for pins in lock.wheels.values() for pin in pins]
        assert len(names) == len(set(names)), "layers have no package in common"
        assert all(pin.name.startswith("nvidia-") for pin in lock.wheels.get(lockfile.CUDA, ()))
    v100, t4 = locks["v100"], locks["t4"]
    for name in ("a100", "l4", "h100"):
        assert (locks[name].files, locks[name].rootfs) == (t4.files, t4.rootfs)
    others = {pin for pin in v100.packages.values() if pin.name != "nvidia-cudnn-cu12"}
    assert others < set(t4.packages.values()), "a V100 needs an older cuDNN, and nothing else"
    assert v100.rootfs is not None
    assert v100.rootfs.origin == f"Debian bookworm, {len(v100.rootfs.packages)} packages"
    checksum, document = v100.rootfs.packages_checksum, json.loads(v100.document)
    assert document["root"] == {"suite": "bookworm", "packages": checksum}
    assert yaml.safe_load(v100.document) == document


# --- staleness -----------------------------------------------------------------------------------


def stale(root: Path, name: str) -> list[tuple[str, str]]:
    spec, stack = target(root, name)
    return [(staleness.file, staleness.why) for staleness in lockfile.check(root, spec, stack)[1]]


def test_the_trainers_requirements_are_part_of_the_lock(copy: Path) -> None:
    assert stale(copy, "v100") == []
    assert {"psutil", "nvidia-ml-py"} <= lockfile.read(copy, "v100").packages.keys()
    path = copy / "trainer/requirements.txt"
    path.write_text("psutil>=7  # of the machine\n")
    locked = '["nvidia-ml-py>=13", "psutil>=7", "simplejpeg>=1.9", "cykooz-resizer>=4"]'
    why = f'trainer/requirements.txt is ["psutil>=7"], locked is {locked}'
    assert stale(copy, "v100") == [("images/v100/image.lock", why)]
    path.unlink()
    assert [why for _, why in stale(copy, "v100")] == [
        f"trainer/requirements.txt is null, locked is {locked}"
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r more.txt", "is an option"),
        ("a @ https://example.com/a.whl", "names a URL"),
        ("a==1 --hash=sha256:0", "is not a requirement"),
    ],
)
def test_a_line_of_the_trainers_requirements_that_cannot_be(
    line: str, words: str, copy: Path
) -> None:
    (copy / "trainer/requirements.txt").write_text(f"psutil\n\n{line}\n")
    with pytest.raises(InputError, match=words) as error:
        image_yaml.load(copy, "cpu")
    assert error.value.message.startswith("trainer/requirements.txt:3: ")


CPU = "accelerator: CPU\nsize_budget: 1 GB\n"
CHANGES: dict[str, tuple[Callable[[Path], object], list[tuple[str, str]]]] = {
    "a comment and a variable": (
        lambda images: (images / "cpu/image.yaml").write_text(f"# x\n{CPU}environment: {{A: b}}\n"),
        [],
    ),
    "two fields": (
        lambda images: (images / "cpu/image.yaml").write_text(
            "accelerator: CPU\ntensorflow: 2.20.0\napt: [libgl1]\n"
        ),
        [
            ("cpu/image.lock", "image.yaml's tensorflow is 2.20.0, locked is 2.21.0"),
            ("cpu/image.lock", 'image.yaml\'s apt is ["libgl1"], locked is []'),
        ],
    ),
    "a lock edited by hand": (
        lambda images: replace_in(images / "cpu/tensorflow.lock", "keras==3", "keras==4"),
        [("cpu/tensorflow.lock", "was edited: it is not what was locked")],
    ),
    "a missing and a stray file": (
        lambda images: (
            (images / "cpu/tensorflow.lock").unlink(),
            (images / "cpu/cuda.lock").write_text(""),
        ),
        [("cpu/tensorflow.lock", "is missing"), ("cpu/cuda.lock", "belongs to no lock")],
    ),
    "never locked": (
        lambda images: (images / "cpu/image.lock").unlink(),
        [("cpu/image.lock", "is missing: never locked")],
    ),
    "the packages of the rootfs": (
        lambda images: replace_in(images / "os-bookworm.lock", "bash=", "bash=0"),
        [("cpu/image.lock", "os-bookworm.lock has changed since")],
    ),
    "another schema": (
        lambda images: replace_in(images / "cpu/image.lock", '"schema": 3', '"schema": 2'),
        [("cpu/image.lock", "images/cpu/image.lock: is not what `builder lock` writes ('schema')")],
    ),
    "a torn file": (
        lambda images: (images / "cpu/image.lock").write_text('{"schema": 3, "fil'),
        [("cpu/image.lock", "is not what `builder lock` writes (Unterminated string")],
    ),
}


def replace_in(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_is_stale_is_named_with_the_reason(
    change: Callable[[Path], object], expected: list[tuple[str, str]], copy: Path
) -> None:
    change(copy / "images")
    found = stale(copy, "cpu")
    assert len(found) == len(expected)
    for (file, why), (name, start) in zip(found, expected, strict=True):
        assert file == f"images/{name}" and why.startswith(start)


@pytest.mark.parametrize("name", ["never locked", "another schema", "a torn file"])
def test_a_lock_that_cannot_be_read_is_refused_with_the_command(name: str, copy: Path) -> None:
    CHANGES[name][0](copy / "images")
    with pytest.raises(InputError, match=r"^images/cpu/image\.lock: is ") as error:
        lockfile.read(copy, "cpu")
    assert "run builder lock cpu" in error.value.fix


def test_what_a_framework_needs_is_not_said_to_be_the_persons(copy: Path) -> None:
    spec, stack = target(copy, "t4-torch")
    replace_in(copy / "images/t4-torch/image.lock", '"g++",', "")
    (staleness,) = lockfile.check(copy, spec, stack)[1]
    assert staleness.why.startswith('image.yaml\'s apt, with what PyTorch needs, is ["g++", ')


def test_moved_tables_are_seen(copy: Path) -> None:
    spec, stack = target(copy, "v100")
    moved = replace(stack, constraints={**stack.constraints, "nvidia-cudnn-cu12": "9.4.0.58"})
    (staleness,) = lockfile.check(copy, spec, moved)[1]
    assert staleness.file == "images/v100/cuda.lock"
    assert staleness.why == "the tables choose nvidia-cudnn-cu12 9.4.0.58, locked is 9.10.2.21"


# --- the real resolver ---------------------------------------------------------------------------


REFUSED = [
    ("cpu", '["numpy<1.20"]', r'"numpy<1\.20" cannot be met: .*numpy>=1\.26'),
    ("cpu", '["tensorflow==2.21.0"]', "files would replace those of tensorflow-cpu"),
    ("cpu", '["scipy==1.11.4", "numpy>=2"]', r"yaml:2: requirements: they contradict each.*scipy"),
    *(
        (
            "v100",
            f'[pillow,\n"{requirement}"]',
            f'yaml:3: requirements: "{requirement}" would {move}',
        )
        for requirement, move in {
            "tensorflow==2.20.0": "move tensorflow 2.21.0 to 2.20.0",
            "tensorflow-text<2.20": "move tensorflow 2.21.0 to 2.19.",
            "nvidia-cudnn-cu12==9.28.0.42": "move nvidia-cudnn-cu12 9.10.2.21 to 9.28.0.42",
            "protobuf<5": "move .*protobuf",
        }.items()
    ),
]


@pytest.mark.network
@pytest.mark.parametrize(("name", "requirements", "message"), REFUSED)
def test_requirements_that_cannot_be_met(
    copy: Path, name: str, requirements: str, message: str
) -> None:
    before = {path: path.read_bytes() for path in (copy / "images").rglob("*.lock")}
    text = f"accelerator: {name.upper()}\nrequirements: {requirements}\n"
    with pytest.raises(InputError, match=message) as error:
        lock(copy, *target(copy, name, text))
    assert "pillow" not in error.value.message
    assert {path: path.read_bytes() for path in (copy / "images").rglob("*.lock")} == before


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "requirements", "fix"),
    [
        (
            "cpu",
            "opencv-python==4.13.0.92, albumentations",
            '"opencv-python==4.13.0.92"; opencv-py',
        ),
        ("v100", "onnxruntime, onnxruntime-gpu", '"onnxruntime"; onnxruntime-gpu stays'),
    ],
)
def test_of_packages_with_the_same_files_the_one_to_leave_out_is_named(
    copy: Path, name: str, requirements: str, fix: str
) -> None:
    text = f"accelerator: {name.upper()}\nrequirements: [{requirements}]\n"
    with pytest.raises(InputError, match="install the same files") as error:
        lock(copy, *target(copy, name, text))
    assert error.value.fix.startswith(f"leave out {fix}")
    assert ("which albumentations needs" in error.value.fix) is ("albumentations" in requirements)


@pytest.mark.network
def test_a_package_that_is_there_as_source_alone_is_locked_or_refused_in_a_word(copy: Path) -> None:
    text = "accelerator: CPU\nrequirements: [hydra-core, promise]\n"
    made = lock(copy, *target(copy, "cpu", text))
    assert {pin.name for pin in made.packages.values() if pin.source} == {
        "antlr4-python3-runtime", "promise",
    }  # fmt: skip
    assert made.packages["six"].version, "what the source says that it needs"
    assert made.packages["hydra-core"].version >= "1.3", "and not one of before, without it"
    read = lockfile.read(copy, "cpu").packages["promise"]
    assert read == made.packages["promise"] and read.source
    platform = uv.Platform("3.11", 36)
    with download.wheels_of([read], platform) as wheels, wheels.fetch(read, lambda _: 0) as file:
        assert hashlib.sha256(file.read()).hexdigest() == read.sha256
    with (
        download.wheels_of([read], platform) as wheels,
        pytest.raises(OutsideError, match="what is made of its source is not what the lock has"),
    ):
        other = replace(read, sha256="0" * 64)
        replace(wheels, addresses={other.sha256: wheels.addresses[read.sha256]}).fetch(
            other, lambda _: 0
        )
    text = "accelerator: CPU\nrequirements: [pycocotools==2.0.2]\n"
    with pytest.raises(InputError) as refused:
        lock(copy, *target(copy, "cpu", text))
    message = (
        '"pycocotools==2.0.2": pycocotools 2.0.2 is there as source alone, and it has to be built'
    )
    assert message in refused.value.message and len(refused.value.message) < 160


@pytest.mark.network
def test_requirements_have_a_layer_of_their_own_and_what_they_move_is_said(copy: Path) -> None:
    before = lockfile.read(copy, "cpu")
    text = (
        "accelerator: CPU\nsize_budget: 1 GB\n"
        'requirements: ["pillow", "setuptools<81"]\napt: [libgomp1]\n'
    )
    spec, stack = target(copy, "cpu", text)
    calls: list[object] = []

    def apt(
        suite: str, wanted: object, installed: tuple[DebianPackage, ...]
    ) -> list[tuple[DebianPackage, ...]]:
        calls.append((suite, wanted))
        names = {deb.name for deb in installed}
        assert {"bash", "python3"} <= names
        return [(LIBGOMP,)]

    made = lock(copy, spec, stack, apt)
    assert calls == [("bookworm", [("libgomp1",)])]
    names = [pin.name for pin in made.wheels[lockfile.EXTRA]]
    assert names == ["cykooz-resizer", "nvidia-ml-py", "pillow", "psutil", "simplejpeg"]
    assert [library.name for library in made.moved] == ["setuptools"]
    assert made.moved[0].before == before.packages["setuptools"].version
    assert made.packages["setuptools"].version.startswith("80.")
    kept = {n: p for n, p in made.packages.items() if n not in ("pillow", "setuptools")}
    assert kept == {n: p for n, p in before.packages.items() if n != "setuptools"}
    assert made.apt[lockfile.APT_EXTRA] == (LIBGOMP,)
    assert made.apt[lockfile.APT] == before.apt[lockfile.APT]
    assert made.rootfs == before.rootfs
    # again: the same bytes, and nothing left to do
    files = {path: path.read_bytes() for path in (copy / "images").rglob("*.lock")}
    (copy / "images/cpu/image.lock").unlink()
    assert lock(copy, spec, stack, apt) == made
    assert {path: path.read_bytes() for path in (copy / "images").rglob("*.lock")} == files
    assert lockfile.check(copy, spec, stack)[1] == ()
    # and back: the layers of requirements go, TensorFlow's is what it was
    spec, stack = target(copy, "cpu", "accelerator: CPU\nsize_budget: 1 GB\n")
    assert lock(copy, spec, stack).files == before.files
    assert "pillow" not in (copy / "images/cpu/extra.lock").read_text()


@pytest.mark.network
def test_pins_are_kept_until_an_upgrade_is_asked_for(copy: Path) -> None:
    spec, stack = target(copy, "cpu")
    older = {name: pin.version for name, pin in lockfile.read(copy, "cpu").packages.items()}
    older["rich"] = "14.0.0"
    files.write(
        copy / "images/cpu/tensorflow.lock",
        pins.dump([Pin(n, v, "a" * 64) for n, v in older.items()], ""),
    )
    assert lock(copy, spec, stack).packages["rich"].version == "14.0.0"
    locked = lockfile.read(copy, "cpu")
    assert locked.rootfs is not None
    root, python = locked.rootfs.packages, locked.apt[lockfile.APT]
    newer = replace(root[0], version="9", sha256="9" * 64)

    def apt(
        suite: str, wanted: Any, installed: tuple[DebianPackage, ...]
    ) -> list[tuple[DebianPackage, ...]]:
        assert (len(wanted), installed) == (2, ())
        first = (newer, *root[1:])
        if "usr-is-merged" not in wanted[0]:
            return [(*first, replace(newer, name="usrmerge")), python]
        return [first, (newer, *python)]

    upgraded = lock(copy, spec, stack, apt, upgrade=True)
    assert upgraded.packages["rich"].version != "14.0.0"
    assert upgraded.rootfs is not None
    assert upgraded.rootfs.packages == (newer, *root[1:])
    assert upgraded.apt == {lockfile.APT: python}


def test_an_upgrade_takes_releases_of_seven_days(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[dict[str, str]] = []

    def wheels(*_: object) -> Any:
        limits.append(dict(cast(dict[str, str], _[3])))
        return {"tensorflow.lock": (Pin("rich", "14.0.0", "a" * 64),)}, ()

    monkeypatch.setattr(locking, "_wheels", wheels)
    monkeypatch.setattr(locking, "_debian", lambda root, *_: (root, {}))
    monkeypatch.delenv(uv.EXCLUDE_NEWER, raising=False)
    made = lock(copy, *target(copy, "cpu"), upgrade=True, now=["pip"])
    assert made.packages["rich"].version == "14.0.0"
    assert limits == [{uv.EXCLUDE_NEWER: "7 days", uv.TAKEN_NOW: "pip"}]


def test_uv_takes_no_release_that_is_too_young_or_without_a_date(tmp_path: Path) -> None:
    young = datetime.now(UTC) - timedelta(days=1)
    releases = {"1.0": young - timedelta(days=30), "2.0": young}
    days = {version: day.strftime("%Y-%m-%dT%H:%M:%SZ") for version, day in releases.items()}
    wheels: dict[tuple[str, str], tuple[str, ...]] = {("pkg", version): () for version in releases}
    with serving(simple("/simple", wheels, days)) as server:
        index = {"UV_DEFAULT_INDEX": f"{server.address}/simple/", "UV_CACHE_DIR": str(tmp_path)}
        for limits, version in (
            ({}, "2.0"),
            ({uv.EXCLUDE_NEWER: uv.AGE}, "1.0"),
            ({uv.EXCLUDE_NEWER: uv.AGE, uv.TAKEN_NOW: "pkg"}, "2.0"),
        ):
            pins = uv.resolve(["pkg"], uv.Platform("3.11", 36), {**index, **limits})
            assert pins["pkg"].version == version
        with pytest.raises(uv.NoSolution, match="--now pkg"):
            uv.resolve(["pkg>1"], uv.Platform("3.11", 36), {**index, uv.EXCLUDE_NEWER: uv.AGE})


CUDA_BUILDS = {
    ("torch", "2.15.0"): ("nvidia-cudnn-cu13==9.26.0.51",),
    ("nvidia-cudnn-cu13", "9.26.0.51"): (),
    ("torchvision", "0.30.0"): ("torch==2.15.0",),
    ("setuptools", "84.2.1"): (),
}


@pytest.mark.parametrize(
    ("variable", "offered", "said"),
    [
        ("PIP_EXTRA_INDEX_URL", ("torch", "2.15.0+cpu"), "torch 2.15.0.cpu .* is built for cpu"),
        ("UV_INDEX", ("torch", "2.15.0+rocm7.2"), "torch 2.15.0.* is built for rocm7.2"),
        ("UV_EXTRA_INDEX_URL", ("torch", "2.15.0+xpu"), "torch 2.15.0.* is built for xpu"),
        ("UV_DEFAULT_INDEX", ("torch", "2.15.0"), "torch 2.15.0 .* does not bring nvidia-cudnn-cu"),
        ("UV_INDEX", ("torch", "2.15.0+cu126"), "2.15.0.cu126 .* does not bring nvidia-cudnn-cu13"),
        ("UV_INDEX", ("torchvision", "0.30.0+cpu"), "torchvision 0.30.0.cpu .* is built for cpu"),
    ],
)
def test_a_build_for_another_device_is_refused_with_its_index_and_the_variable(
    variable: str, offered: tuple[str, str], said: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "accelerator: T4\ntorch: 2.15.0\nrequirements: [torchvision]\n"
    (copy / "trainer/requirements.txt").unlink()
    spec, stack = target(copy, "t4", text)
    monkeypatch.setenv("UV_CACHE_DIR", str(copy / "cache"))
    other = {offered: (), ("setuptools", "84.2.1"): ()}
    answers = simple("/simple", CUDA_BUILDS) | simple("/other", other)
    with serving(answers) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.address}/simple/")
        pins = locking._wheels(stack, network.discover(), (), {})[0]
        assert [pin.name for pin in pins[lockfile.CUDA]] == ["nvidia-cudnn-cu13"]
        beside = [pin.name for pin in pins["torch.lock"]]
        assert beside == ["setuptools", "torch"], "PyTorch's compiler needs it, its wheel does not"
        monkeypatch.setenv(variable, f"{server.address}/other")
        with pytest.raises(InputError, match=said) as refused:
            lock(copy, spec, stack)
        message = refused.value.message
        assert f"{server.address}/other, which {variable} names" in message, message
        assert variable in refused.value.fix
    no_gpu = target(copy, "cpu")[1]  # there, such a build is right
    cpu = {"torch": Pin("torch", "2.15.0+cpu", "0" * 64)}
    locking._check_builds(no_gpu, cpu, network.BuildNetwork())


@pytest.mark.network
def test_a_new_target_starts_from_its_neighbours(copy: Path) -> None:
    spec, stack = target(copy, "team-t4", "accelerator: T4\nsize_budget: 3 GB\n")
    assert lock(copy, spec, stack).files == lockfile.read(copy, "t4").files


@pytest.mark.network
def test_an_index_that_cannot_be_reached_leaves_the_lock(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(copy / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    text = 'accelerator: CPU\nsize_budget: 1 GB\nrequirements: ["pillow"]\n'
    spec, stack = target(copy, "cpu", text)
    before = (copy / "images/cpu/image.lock").read_bytes()
    with pytest.raises(OutsideError) as error:
        lock(copy, spec, stack)
    assert "127.0.0.1:9" in error.value.message
    assert "secret" not in error.value.message
    assert "\n" not in error.value.message
    assert (copy / "images/cpu/image.lock").read_bytes() == before
