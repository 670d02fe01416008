"""An image of anybody's without what it can be without: the same program, fewer bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from docker.errors import ImageNotFound
from typer.testing import CliRunner

from builder import registry
from builder.cli.group import app
from builder.core.errors import CheckFailed, FactoryError, InputError
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, buildx
from builder.image import opened, registry_layers
from builder.image.content_store import ContentStore
from builder.pipeline import slim as slim_module
from builder.pipeline.slim_layers import RECEIPT
from builder.reading import images
from builder.reading.layers import Tree
from tests.devicecode.packing import digest as digest_of
from tests.devicecode.packing import layout, tar
from tests.devicecode.writer import container, digest, library, linked, ptx, sass
from tests.prove import shapes
from tests.prove.reading import SITE, layer
from tests.trust.signing import Repository

BIG = 1_200_000
"""More bytes than a layer has to lose."""
KERNELS = library(
    container(sass(70), sass(75), sass(90, size=BIG), ptx(90)), container(sass(75), sass(90))
)
CONFIG: dict[str, Any] = {
    "Entrypoint": ["python3.11", "/app/train.py"],
    "Env": ["PATH=/usr/bin:/bin", "A=b"],
    "User": "1000",
    "Labels": {"of": "theirs"},
}
KERNEL = f"{SITE}/kernels/libk.so"
RECORD = f"{SITE}/kernels-1.0.dist-info/RECORD"
CACHE = "/home/a/.cache/pip/http/a"
OF_KERNELS = shapes.dist("kernels", "1.0", {"kernels/libk.so": KERNELS})


NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
LARGE = linked(soname="libnccl.so.2") + b"\0" * BIG
FOR_A_CPU = {
    **shapes.BASE,
    "usr/lib/libkernels.so": None,
    **shapes.dist("nvidia-nccl-cu12", "2.27", {"nvidia/nccl/lib/libnccl.so.2": LARGE}),
}


def files(content: Mapping[str, bytes | None]) -> dict[str, tuple[bytes, int, int]]:
    return {path: (data, 0o755, 0) for path, data in content.items() if data is not None}


def saved(path: Path, *stack: bytes, pack: Any = gzip.compress, **config: Any) -> Path:
    """An archive of an image of these layers, the lowest first."""
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": CONFIG | config,
        "rootfs": {"type": "layers", "diff_ids": list(map(digest_of, stack))},
        "history": [{"created_by": f"RUN {number}"} for number in range(len(stack))],
    }
    path.write_bytes(tar(layout(json.dumps(content).encode(), *map(pack, stack))))
    return path


def slim(path: Path, *options: str) -> dict[str, Any]:
    """What `builder slim` says."""
    result = CliRunner().invoke(app, ["slim", str(path), "--json", *options])
    if result.exception:
        raise result.exception
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def went(said: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(each["path"], each["action"]) for each in said["files"]}


def layers_of(path: Path) -> list[dict[str, tuple[tarfile.TarInfo, bytes]]]:
    """The entries of each layer of an archive with their content, the lowest first."""
    with tarfile.open(path) as archive:
        opened = {each.name: archive.extractfile(each) for each in archive if each.isfile()}
        held = {name: file.read() for name, file in opened.items() if file}
    found = []
    for name in json.loads(held["manifest.json"])[0]["Layers"]:
        data = held[name]
        is_gzip = data.startswith(b"\x1f\x8b")
        plain = gzip.decompress(data) if is_gzip else zstandard.decompress(data, 1 << 30)
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            contents = {
                each.name: (each, archive.extractfile(each) if each.isreg() else None)
                for each in archive
            }
            found.append({n: (at, file.read() if file else b"")
                          for n, (at, file) in contents.items()})  # fmt: skip
    return found


def test_a_torch_image_keeps_its_program_and_loses_the_code_of_other_gpus(tmp_path: Path) -> None:
    base = layer(files(shapes.BASE))
    wheels = layer(files({**shapes.CUDA, **shapes.TORCH, **OF_KERNELS}))
    cached = layer(files({CACHE: b"x" * BIG, "/app/data": b"1"}))
    image = saved(tmp_path / "image.tar", base, wheels, cached)
    before = image.read_bytes()
    said = slim(image, "--gpu", "t4")
    new = Path(said["reference"])
    assert (image.read_bytes(), new) == (before, tmp_path / "image-slim.tar")
    assert went(said) == {(KERNEL, "prune"), (CACHE, "remove")}
    kept = [each["before"] == each["after"] for each in said["layers"]]
    assert kept == [True, False, False, False], "what did not change is kept by digest"
    _, middle, upper, top = layers_of(new)
    pruned = middle[KERNEL[1:]][1]
    assert (len(pruned), pruned.count(b"\0") > BIG) == (len(KERNELS), True)
    assert set(upper) == {"app/data"}
    assert f"libk.so,sha256={digest(pruned)},{len(pruned)}" in top[RECORD[1:]][1].decode()
    assert RECORD[1:] not in middle
    assert json.loads(top[RECEIPT][1])["files"] == said["files"]
    content = images.of_archive(new)
    labels = {"of": "theirs", "training-image-factory.runs-on": "7.5"}
    assert content.configuration["config"] == CONFIG | {"Labels": labels}
    assert [each.name for each in content.libraries if each.doubt or each.broken] == []
    again = slim(new, "--gpu", "t4")
    assert (went(again), again["reference"]) == (set(), ""), "a second time there is nothing to do"


def test_what_a_layer_has_in_common_with_others_stays(tmp_path: Path) -> None:
    """Links, whiteouts and what lies below them: a container sees the same files as before."""
    lower = layer(
        files({
            "/cache/.cache/pip/shared": b"s" * BIG,
            "/cache/.cache/pip/alone": b"a" * BIG,
            "/opt/linked/.cache/uv/archive-v0/x/m.py": b"m" * BIG,
            "/opt/old": b"o" * BIG,
            "/opt/changed": b"c" * BIG,
            "/opt/kept": b"k" * BIG,
            KERNEL: KERNELS,
            "/etc/passwd": b"root",
            "/data/archive-v1/pictures": b"p" * BIG,
            "/opt/app/pkgs/own": b"p" * BIG,
            "/opt/conda/pkgs/x": b"p" * BIG,
            "/opt/conda/conda-meta/x.json": b"{}",
        }),
        links={"/app/m": "/opt/linked/.cache/uv/archive-v0/x"},
        hard={"/app/shared": "cache/.cache/pip/shared", "/app/k": "opt/kept"},
    )  # fmt: skip
    upper = layer(files({
        "/opt/.wh.old": b"",
        "/opt/.wh.kept": b"",
        "/opt/changed": b"new",
        CACHE: b"1",
    }), hard={"/app/kernel.so": KERNEL[1:]})  # fmt: skip
    image = saved(tmp_path / "image.tar", lower, upper, pack=zstandard.compress)
    said = slim(image, "--gpu", "t4", "-o", str(tmp_path / "new.tar"))
    assert went(said) == {
        ("/cache/.cache/pip/alone", "remove"),
        ("/opt/conda/pkgs/x", "remove"),
        ("/opt/old", "remove"),
        ("/opt/changed", "remove"),
        (KERNEL, "prune"),
    }, "a layer that loses a byte is not written anew"
    old, new = (Tree(images.of_archive(path).layers) for path in (image, tmp_path / "new.tar"))
    gone = old.files.keys() - new.files.keys()
    assert gone == {"/cache/.cache/pip/alone", "/opt/conda/pkgs/x"}
    assert new.files["/opt/changed"].size == 3
    lowest, _, top = layers_of(tmp_path / "new.tar")
    assert lowest["app/shared"][0].linkname == "cache/.cache/pip/shared"
    assert KERNEL[1:] in top["training_image_pruned.csv"][1].decode(), "no RECORD lists it"


def test_what_uv_has_linked_to_its_cache_stays_and_its_record_says_the_truth(
    tmp_path: Path,
) -> None:
    """All files of a wheel have their bytes in the cache, and RECORD's, too."""
    cache, info = "/home/a/.cache/uv/archive-v0/x", "kernels-1.0.dist-info/RECORD"
    held = {path.replace(SITE, cache): data for path, data in OF_KERNELS.items()}
    hard = {path: path.replace(SITE, cache)[1:] for path in OF_KERNELS}
    image = saved(tmp_path / "image.tar", layer(files({**shapes.BASE, **held}), hard=hard))
    said = slim(image, "--gpu", "t4")
    assert went(said) == {(f"{cache}/kernels/libk.so", "prune")}
    lowest, top = layers_of(Path(said["reference"]))
    pruned = lowest[f"{cache}/kernels/libk.so"[1:]][1]
    for record in (f"{cache}/{info}", f"{SITE}/{info}"):
        assert digest(pruned) in top[record[1:]][1].decode()
    assert lowest[KERNEL[1:]][0].islnk()


def test_what_lies_below_a_link_is_in_another_folder(tmp_path: Path) -> None:
    """lib/a.so is unpacked as usr/lib/a.so, although a layer above has the link again."""
    large = files({"/lib/a.so": b"x" * BIG, "/usr/lib/libk.so": KERNELS})
    link = {"/lib": "usr/lib"}
    stack = layer(files(shapes.BASE), link), layer(large), layer({}, link)
    said = slim(saved(tmp_path / "image.tar", *stack), "--gpu", "t4")
    assert went(said) == {("/usr/lib/libk.so", "prune")}


def test_an_image_beyond_the_bounds_and_a_damaged_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = saved(tmp_path / "a.tar", layer(files(OF_KERNELS)), pack=lambda data: data[:5000])
    with pytest.raises(InputError, match="cannot be read"):
        slim(image, "--gpu", "t4")
    monkeypatch.setattr("builder.reading.tars.MOST", 3)
    with pytest.raises(InputError, match="more than 3 files"):
        slim(saved(tmp_path / "image.tar", layer(files({**OF_KERNELS, "/b": b""}))), "--gpu", "t4")


def second(folder: str, soname: str, *needed: str) -> dict[str, bytes]:
    """A library of a base image's CUDA."""
    return {f"{folder}/{soname}": linked(*needed, soname=soname) + b"\0" * BIG}


def test_a_second_copy_becomes_a_link_where_nothing_loads_it(tmp_path: Path) -> None:
    own, loader = "/usr/local/cuda/lib64", "/lib64/ld-linux-x86-64.so.2"
    tool = linked("libnccl.so.2", runpath=own, interpreter=loader)
    copies = {**second(own, "libcublas.so.12"), **second(own, "libnccl.so.2")}
    base = layer(files({**shapes.BASE, **copies, "/usr/bin/tool": tool}))
    torch = layer(files({**shapes.CUDA, **shapes.TORCH}))
    image = saved(tmp_path / "image.tar", base, torch, pack=bytes)  # not packed
    said = slim(image, "--gpu", "v100")
    assert went(said) == {(f"{own}/libcublas.so.12", "link")}, "a program takes the other"
    tree = Tree(images.of_archive(Path(said["reference"])).layers)
    assert tree.resolve(f"{own}/libcublas.so.12") == f"{SITE}/nvidia/cublas/lib/libcublas.so.12"


def test_cuda_in_an_image_for_the_cpu_goes_with_its_rows(tmp_path: Path) -> None:
    image = saved(tmp_path / "image.tar", layer(files(FOR_A_CPU)))
    said = slim(image)
    assert went(said) == {(NCCL, "remove")}
    *_, top = layers_of(Path(said["reference"]))
    assert top[f"{SITE[1:]}/nvidia_nccl_cu12-2.27.dist-info/RECORD"][1] == b""


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ((), InputError, "name the GPU of the image: --gpu t4"),
        (("--gpu", "t5"), InputError, "t5"),
        (("--gpu", "k80"), FactoryError, "K80"),
        (("--gpu", "a100"), CheckFailed, "no library has code for A100"),
        (("--gpu", "t4", "-o", "{}"), InputError, "is there already"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(
    tmp_path: Path, options: tuple[str, ...], error: type[FactoryError], says: str
) -> None:
    only = library(container(sass(70), sass(75), sass(90, size=BIG)))
    cublas = library(container(sass(80)))
    held = {**shapes.BASE, "/usr/lib/libk.so": only, "/usr/lib/libcublas.so.12": cublas}
    image = saved(tmp_path / "image.tar", layer(files(held)))
    with pytest.raises(error) as raised:
        slim(image, *(each.format(image) for each in options))
    assert says in f"{raised.value.message} {raised.value.fix}"
    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]


def test_what_cannot_be_read_is_left_alone_and_named(tmp_path: Path) -> None:
    nvidia = {"/usr/local/cuda/lib64/libcudnn_ops.so.9": KERNELS}
    torn = KERNELS[: len(KERNELS) // 2]
    image = saved(tmp_path / "i.tar", layer(files({**OF_KERNELS, **nvidia, "/x/libt.so": torn})))
    said = slim(image, "--gpu", "t4", "--dry-run")
    assert (went(said), said["reference"]) == ({(KERNEL, "prune")}, "")
    assert list(said["left_alone"]) == ["/usr/local/cuda/lib64/libcudnn_ops.so.9", "/x/libt.so"]
    both = slim(image, "--gpu", "t4", "--nvidia")
    assert ("/usr/local/cuda/lib64/libcudnn_ops.so.9", "prune") in went(both)
    assert any("EULA" in note for note in both["notes"])
    content = images.of_archive(Path(both["reference"]))
    assert {each.name for each in content.libraries if each.doubt or each.broken} == {"libt.so"}


def test_a_new_finding_refuses_the_new_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.devicecode.records.rewritten", lambda _, text, *__: text)
    image = saved(tmp_path / "image.tar", layer(files(FOR_A_CPU)))
    with pytest.raises(
        CheckFailed, match=r"check installed says: .*libnccl.so.2: installed by .*, and gone"
    ):
        slim(image)
    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]


@pytest.mark.parametrize(
    ("name", "lies_in", "output", "place"),
    [
        ("a/i.tar", "archive", None, f"{Path.cwd()}/a/i-slim.tar"),
        ("i.tar", "archive", "b:1", "b:1"),
        ("i.tar", "archive", "./b", "b"),
        ("trainer", "engine", None, "trainer:latest-slim"),
        ("127.0.0.1:1/a/b:1", "engine", None, "127.0.0.1:1/a/b:1-slim"),
        ("trainer:1", "engine", "127.0.0.1:1/a/b", "127.0.0.1:1/a/b:latest"),
        ("trainer:1", "engine", "trainer:1", "is there already"),
        ("trainer", "engine", "trainer:latest", "is there already"),
        ("0123456789ab", "engine", None, "name it with -o"),
        ("127.0.0.1:1/a/b", "registry", None, "127.0.0.1:1/a/b:latest-slim"),
        ("127.0.0.1:1/a/b:1", "registry", "127.0.0.1:1/a/b:1", "is there already"),
        ("127.0.0.1:1/a/b:1", "registry", "a/b:1", "a/b:1"),
        (f"127.0.0.1:1/a/b@sha256:{'0' * 64}", "registry", None, "name it with -o"),
    ],
)
def test_where_it_goes(name: str, lies_in: str, output: str | None, place: str) -> None:
    reference = registry.parse(name) if lies_in == "registry" else None
    source: Any = SimpleNamespace(reference=reference, image_id="i" * (lies_in == "engine"))
    try:
        said = str(
            slim_module._place_of(slim_module.SlimRequest(name, Settings(), None, output), source)
        )
    except InputError as error:
        said = f"{error.message} {error.fix}"
    assert place in said


@pytest.mark.network
def test_between_registry_and_archive_only_what_changed_travels(
    repository: Repository, tmp_path: Path
) -> None:
    """The tag of the source leads to the same image as before."""
    stack = layer(files(shapes.BASE)), layer(files(OF_KERNELS))
    store = ContentStore(tmp_path / "store")
    source = opened.of_archive(store, saved(tmp_path / "image.tar", *stack))
    to = repository.reference.tagged("1")
    registry_layers.publish(repository.client, to, source.image, store)
    name, before = str(to), repository.client.head(to.repository, "1")
    said = slim(name, "--gpu", "t4")
    assert (said["reference"], went(said)) == (f"{name}-slim", {(KERNEL, "prune")})
    assert repository.client.head(to.repository, "1-slim") == said["digest"]
    again = slim(name, "--gpu", "t4", "-o", str(tmp_path / "new.tar"))
    assert again["digest"] == said["digest"], "the same image gives the same image"
    assert images.of_archive(tmp_path / "new.tar").layers
    assert repository.client.head(to.repository, "1") == before
    with pytest.raises(InputError, match="is there already"):
        slim(name, "--gpu", "t4", "-o", name)


TAG = "slim-test:latest"


@pytest.mark.engine
def test_an_image_in_the_engine_runs_before_and_after(
    engine: Engine, context: Callable[..., Path]
) -> None:
    folder = context(
        f'COPY libk.so {KERNEL}\nCOPY libk.so {CACHE}\nUSER 1000:1000\n'
        'CMD ["/bin/busybox", "true"]\n'
    )  # fmt: skip
    (folder / "libk.so").write_bytes(KERNELS)
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (TAG,)))
    try:
        source = engine.client.images.get(TAG)
        run = f"busybox test $(busybox wc -c < {KERNEL}) = {len(KERNELS)}"
        said = slim(TAG, "--gpu", "t4", "--run", run)
        assert (said["reference"], went(said)) == (
            "slim-test:latest-slim",
            {(KERNEL, "prune"), (CACHE, "remove")},
        )
        new = engine.client.images.get("slim-test:latest-slim")
        assert engine.client.images.get(TAG).id == source.id
        for key in ("Cmd", "User", "Env", "Entrypoint"):
            assert new.attrs["Config"].get(key) == source.attrs["Config"].get(key)
        out = engine.client.containers.run(new, ["busybox", "ls", KERNEL], remove=True)
        assert out.decode().strip() == KERNEL
        with pytest.raises(CheckFailed, match="ends with 0 in slim-test:latest, and with 1"):
            slim(TAG, "--gpu", "t4", "--run", f"busybox test -e {CACHE}", "-o", "slim-test:2")
        names = [name for image in engine.client.images.list() for name in image.tags]
        assert not [name for name in names if name.startswith(("slim-test:2", "training:slim-"))]
    finally:
        for tag in (TAG, "slim-test:latest-slim"):
            with contextlib.suppress(ImageNotFound):
                engine.client.images.remove(tag, force=True)
