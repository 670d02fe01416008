"""Where libraries come from, and what is said of them: folders, layers, a receipt."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import zstandard

from builder.core import files
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.devicecode.inventory import from_files, from_folder, from_paths
from builder.devicecode.layers import merge
from builder.devicecode.pruning.rule import ComputeCapability
from builder.devicecode.verdict import Audit, Support
from builder.engine import Engine
from builder.prove import audit
from builder.prove.audit import in_registry, on_engine
from builder.prove.checks import device_code
from builder.registry import DOCKER_MANIFEST, Registry, manifest, manifests, parse
from builder.registry.manifests import OCI_CONFIG, OCI_LAYER_GZIP
from builder.tensorflow.suite import PROGRAM, TRAINER
from tests.devicecode.writer import container, library, ptx, sass
from tests.emulators.answers import serving
from tests.prove.installed import site, stack

VOLTA = library(container(sass(70)))
HOPPER = library(container(sass(90)))


def layer(files: Mapping[str, bytes]) -> bytes:
    """A layer as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def visible(*layers: bytes) -> dict[str, int]:
    """The libraries that a container of these layers (topmost first) would see, with their size."""
    read = [in_registry.read_layer(io.BytesIO(data)) for data in layers]
    return {library.path: library.size for library in merge(read)}


def no_engine(start: bool) -> Engine:
    raise OutsideError("no engine", "")


# --- layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_layer_is_read_however_it_is_compressed(pack: object) -> None:
    assert visible(pack(layer({"usr/lib/a.so": b"a"}))) == {"/usr/lib/a.so": 1}  # type: ignore[operator]


def test_an_upper_layer_replaces_a_file_and_hides_what_it_removed() -> None:
    lower = layer(
        {"l/a.so": b"old", "l/b.so": b"b", "d/x.so": b"x", "d/e/y.so": b"y", "k.so": b"k"}
    )
    upper = layer({"l/a.so": b"newer", "l/.wh.b.so": b"", ".wh.d": b""})
    assert visible(upper, lower) == {"/l/a.so": 5, "/k.so": 1}


def test_an_opaque_folder_hides_what_lies_below_it_only() -> None:
    lower = layer({"d/x.so": b"x", "d/e/y.so": b"y", "dd.so": b"dd"})
    upper = layer({"d/.wh..wh..opq": b"", "d/new.so": b"new"})
    assert visible(upper, lower) == {"/d/new.so": 3, "/dd.so": 2}


def test_a_whiteout_does_not_hide_what_its_own_layer_brings() -> None:
    upper = layer({".wh.d": b"", "d/new.so": b"new"})
    assert visible(upper, layer({"d/old.so": b"old"})) == {"/d/new.so": 3}


def test_a_file_in_a_folders_place_hides_the_folder() -> None:
    assert visible(layer({"d": b"file"}), layer({"d/x.so": b"x"})) == {}


def test_a_layer_is_read_to_its_end_because_its_digest_covers_that() -> None:
    packed = io.BytesIO(gzip.compress(layer({"a.so": b"a"})) + bytes(1 << 21))
    in_registry.read_layer(packed)
    assert packed.read() == b""


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_torn_layer_is_an_error(pack: object) -> None:
    torn = pack(layer({"a.so": bytes(range(256)) * 64}))[:-40]  # type: ignore[operator]
    with pytest.raises((ValueError, EOFError, tarfile.TarError)):
        visible(torn)


# --- paths ----------------------------------------------------------------------------------------


def test_a_folder_is_judged_for_every_gpu_and_refused_for_none(tmp_path: Path) -> None:
    site(tmp_path)
    (found,) = audit.audit(None, Settings(), no_engine, [str(tmp_path)])
    status = {device.name: verdict.status for device, verdict in found.verdicts}
    assert (status["V100"], status["H100"]) == (Support.NATIVE, Support.NATIVE)
    assert status["L4"] == Support.OLDER_MINOR
    assert status["B200"] == Support.PTX
    audit.require([found])


def test_a_gpu_that_was_asked_for_is_an_error_where_kernels_are_missing(tmp_path: Path) -> None:
    site(tmp_path, cudnn=HOPPER)
    found = audit.audit(None, Settings(), no_engine, [str(tmp_path)], gpus=["h100", "7.0"])
    with pytest.raises(CheckFailed, match=r"7\.0: missing, because of libcudnn_ops\.so\.9") as said:
        audit.require(found)
    assert "9.10.2.21 or older" in said.value.fix
    assert found[0].as_dict()["refused"] == ["7.0"]


def test_the_table_names_libraries_and_closes_with_a_verdict(tmp_path: Path) -> None:
    site(tmp_path, cudnn=HOPPER)
    found = audit.audit(None, Settings(), no_engine, [str(tmp_path)], gpus=["V100", "H100"])
    assert [line.split() for line in audit.table(found)[:3]] == [
        ["V100", "H100"],
        ["libcudnn_ops.so.9", "missing", "native"],
        ["libtensorflow_cc.so.2", "native", "native"],
    ]
    assert audit.table(found)[3].startswith("V100 7.0: missing, because of libcudnn_ops.so.9")
    assert audit.table(found)[4].startswith("    instead: nvidia-cudnn-cu12 9.10.2.21 or older")
    assert audit.table(found)[5] == "H100 9.0: native"


def test_several_targets_are_one_table(tmp_path: Path) -> None:
    """What --all prints: a column a target, each judged for its own GPU."""
    fine = site(tmp_path / "lib/python3.11/site-packages")
    lacks = site(tmp_path / "lib/python3.10/site-packages", cudnn=VOLTA)
    both = [
        audit.Audited("v100", fine, (audit.Gpu("V100", ComputeCapability(7, 0)),), wanted=True),
        audit.Audited("h100", lacks, (audit.Gpu("H100", ComputeCapability(9, 0)),), wanted=True),
        audit.Audited("t4", Audit(()), (), note="not read (run builder build t4)"),
    ]
    lines = audit.table(both)
    assert lines[0].split() == ["v100", "h100"]
    assert lines[1].split() == ["libcudnn_ops.so.9", "native", "missing"]
    assert lines[2].split() == ["libtensorflow_cc.so.2", "native", "native"]
    assert lines[3].startswith("v100: V100 7.0: native")
    assert lines[4].startswith("h100: H100 9.0: missing, because of libcudnn_ops.so.9")
    assert lines[-1] == "t4: not read (run builder build t4)"
    with pytest.raises(CheckFailed, match=r"h100: H100 9\.0: missing"):
        audit.require(both)


def test_a_name_that_leads_nowhere_is_refused(project: Path) -> None:
    with pytest.raises(InputError, match="no-such is no target, no file"):
        audit.audit(project, Settings(), no_engine, ["no-such"])
    with pytest.raises(InputError, match="nothing to audit"):
        audit.audit(project, Settings(), no_engine, [])
    with pytest.raises(InputError, match="CPU is no GPU"):
        audit.audit(project, Settings(), no_engine, ["."], gpus=["CPU"])


def test_a_target_without_a_gpu_is_told_apart(root: Path) -> None:
    with pytest.raises(InputError, match="cpu is for CPU"):
        audit.audit(root, Settings(), no_engine, ["cpu"])


def test_the_command_reads_wheels_and_folders_outside_of_a_project(tmp_path: Path) -> None:
    site(tmp_path / "site-packages", cudnn=HOPPER)
    command = [sys.executable, "-m", "builder", "-q", "audit", "site-packages"]
    environment = {**os.environ, "PYTHONPATH": str(Path(audit.__file__).parents[3])}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    fine, bad = run("--gpu", "H100"), run("--gpu", "H100", "--gpu", "V100", "--json")
    assert (fine.returncode, fine.stdout.splitlines()[-1]) == (0, "H100 9.0: native")
    assert bad.returncode == 4
    assert json.loads(bad.stdout)[0]["refused"] == ["V100"]
    assert "instead" not in bad.stderr and "9.10.2.21 or older" in bad.stderr
    assert run("--all").returncode == 2


# --- the receipt ----------------------------------------------------------------------------------


def test_a_receipt_says_how_each_library_runs(root: Path, tmp_path: Path) -> None:
    defects, seen = device_code.judge(site(tmp_path), stack(root), "v100")
    assert not defects
    assert seen["status"] == "native"
    assert sorted(seen["libraries"].values()) == ["native", "native"]  # type: ignore[union-attr]


def test_a_receipt_names_what_spoils_an_image(root: Path, tmp_path: Path) -> None:
    defects, _ = device_code.judge(site(tmp_path, cudnn=HOPPER), stack(root), "v100")
    assert "on V100 (7.0: missing, because of libcudnn_ops.so.9" in defects[0].message
    assert "nvidia-cudnn-cu12 9.10.2.21 or older" in defects[0].fix


def test_an_image_without_any_device_code_is_no_gpu_image(root: Path) -> None:
    nothing = Audit(tuple(from_files([])))
    assert device_code.judge(nothing, stack(root), "v100")[0]


def test_ptx_passes_only_where_it_is_allowed(write_target: object, project: Path) -> None:
    slow = library(container(ptx(80, code_size=90_000_000)))
    found = Audit(tuple(from_files([("tensorflow/a.so", io.BytesIO(slow))])))
    for allowed in ("false", "true"):
        write_target(f"accelerator: H100\nsize_budget: 3 GB\nallow_ptx: {allowed}\n")  # type: ignore[operator]
        defects, seen = device_code.judge(found, stack(project), "v100")
        assert (not defects) == (allowed == "true")
        assert seen["status"] == "PTX"


@pytest.mark.parametrize(
    ("accelerator", "wanted"), [("V100", True), ("TPU", False), ("CPU", False)]
)
def test_device_code_is_required_of_gpu_images_only(accelerator: str, wanted: bool) -> None:
    for suite in (TRAINER, PROGRAM):
        assert ("device-code" in suite.required(accelerator)) == wanted


# --- images ---------------------------------------------------------------------------------------


def test_an_images_own_python_reads_what_we_would(tmp_path: Path) -> None:
    """The program that runs inside an image, with nothing there but the folder it is given."""
    site(tmp_path / "root/opt/site-packages")
    (tmp_path / "root/proc").mkdir()
    (tmp_path / "root/proc/not-a-library.so").write_bytes(b"never read")
    with tarfile.open(fileobj=io.BytesIO(on_engine._reader())) as archive:
        archive.extractall(tmp_path)  # Debian 12's Python knows no filter yet
    places = [tmp_path / on_engine._PLACE, tmp_path / "root", "proc"]
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", on_engine._READ, *places],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert on_engine._answer(done.stdout) == Audit(tuple(from_folder(tmp_path / "root/opt")))
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_full_disk_says_nothing_of_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was read whole is kept: with space again, the same layer is judged anew."""
    packed = gzip.compress(layer({"opt/a.so": VOLTA}))
    one = manifests.Descriptor.of(OCI_LAYER_GZIP, packed)
    config = manifests.Descriptor.of(OCI_CONFIG, b"{}")
    image = manifests.image(config, [one])
    answers = {
        "/v2/team/image/manifests/v1": (200, {"Content-Type": image.media_type}, image.data),
        f"/v2/team/image/blobs/{one.digest}": (200, {}, packed),
    }
    with serving(answers) as server:
        name = parse(f"127.0.0.1:{server.server_port}/team/image:v1")
        with monkeypatch.context() as full:
            full.setattr(
                "tempfile.TemporaryFile", partial(Path("/dev/full").open, "r+b", buffering=0)
            )
            with pytest.raises(OutsideError, match="No space left on device") as raised:
                audit.of_registry(name, tmp_path)
        assert "TMPDIR" in raised.value.fix
        assert not list(tmp_path.iterdir())
        assert [one.broken for one in audit.of_registry(name, tmp_path).found.libraries] == [""]


@pytest.mark.network
@pytest.mark.slow
def test_an_image_in_a_registry_is_read_without_pulling_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.registry.server import registry

    with registry(tmp_path / "registry") as server, Registry(server.host) as client:
        lower = gzip.compress(layer({"opt/old.so": HOPPER, "opt/a.so": VOLTA}))
        upper = zstandard.compress(layer({"opt/.wh.old.so": b""}))
        blobs = [client.put_blob("team/image", data) for data in (lower, upper)]
        config = client.put_blob("team/image", b"{}")
        made = manifest(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": config.json(),
                "layers": [blob.json() for blob in blobs],
            }
        )
        client.put_manifest("team/image", "v1", made)
        name = f"{server.host}/team/image:v1"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (found,) = audit.audit(None, Settings(), no_engine, [name], gpus=["V100"])
        assert [one.path for one in found.found.libraries] == ["/opt/a.so"]
        audit.require([found])

        # What was read is known by its digest: a layer is downloaded once, and read again when torn
        def downloaded(kept_in: Path) -> list[int]:
            asked: list[int] = []
            again = audit.of_registry(
                parse(name),
                kept_in,
                lambda layer, known: None if known else asked.append(layer.size),
            )
            assert again.found == found.found
            return asked

        folder = files.cache_home() / "layers"
        assert downloaded(folder) == []
        first = next(folder.glob(f"{blobs[0].digest[7:]}-*"))
        first.write_bytes(first.read_bytes()[:-9])
        assert downloaded(folder) == [len(lower)]
        assert downloaded(tmp_path / "other") == [len(lower), len(upper)]

        server.blob_file(blobs[0].digest).write_bytes(lower[:-30])
        with pytest.raises((CheckFailed, OutsideError)):
            audit.of_registry(parse(name), tmp_path / "third")
        assert not list((tmp_path / "third").glob(f"{blobs[0].digest[7:]}-*"))
        with pytest.raises(InputError, match="there is no such image"):
            audit.of_registry(parse(f"{server.host}/team/image:v2"))


def test_an_image_in_a_registry_starts_no_engine() -> None:
    asked = []

    def engine(start: bool) -> Engine:
        asked.append(start)
        raise OutsideError("no engine", "")

    with pytest.raises((InputError, OutsideError)):
        audit.audit(None, Settings(), engine, ["127.0.0.1:1/team/x:v1"])
    with pytest.raises(InputError):
        audit.audit(None, Settings(), engine, ["training:v100"])
    assert asked == [False, True]


def header(name: str, kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 6 << 30), "a name or a header of"),
        (header("pax", tarfile.XHDTYPE, 6 << 30), "a name or a header of"),
        (header("usr/lib/a.so", tarfile.REGTYPE, 20 << 30), "a file of 21,474,836,480 bytes"),
    ],
)
def test_a_layer_beyond_every_bound_is_not_unpacked(data: bytes, said: str) -> None:
    """A name of 6 GB was held in memory, a sparse file of 20 GB written out."""
    with pytest.raises(ValueError, match=said):
        in_registry.read_layer(io.BytesIO(data + bytes(10240)))


def test_a_pipe_is_no_library_and_no_wheel(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.so")
    os.mkfifo(tmp_path / "x.whl")
    for name in ("x.so", "x.whl", "."):
        (found,) = from_paths([tmp_path / name])
        assert found.broken == "not a regular file"


def test_a_library_of_200_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.so").open("wb") as file:
        file.write(b"\x7fELF\x02\x01\x01")
        file.truncate(200 << 30)
    (found,) = from_paths([tmp_path])
    assert found.broken == "larger than 8 GiB: no library is"


KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"


def test_a_layer_keeps_the_secret_that_a_later_one_deletes() -> None:
    below = in_registry.read_layer(io.BytesIO(layer({"root/key.pem": KEY, "etc/hosts": b"x"})))
    above = in_registry.read_layer(io.BytesIO(layer({"root/.wh.key.pem": b""})))
    assert below.secrets == (("/root/key.pem", "a private key"),)
    assert above.secrets == ()


def test_what_a_wheel_installs_is_public_unless_somebody_changed_it() -> None:
    files = {
        "site/x/test.pem": KEY,
        "site/x/other.pem": KEY,
        "site/x-1.dist-info/RECORD": f"x/test.pem,,{len(KEY)}\nx/other.pem,,3\n".encode(),
    }
    found = in_registry.read_layer(io.BytesIO(layer(files)))
    assert found.secrets == (("/site/x/other.pem", "a private key"),)


def test_a_secret_in_a_layer_refuses_the_image() -> None:
    one = audit.Audited("x", Audit(()), (), secrets=("layer sha256:1 holds a private key: /k",))
    assert "x: layer sha256:1 holds a private key: /k" in audit.table([one])
    assert one.as_dict()["secrets"] == list(one.secrets)
    with pytest.raises(CheckFailed, match=r"^x: layer sha256:1 holds a private key: /k"):
        audit.require([one])
