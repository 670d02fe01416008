"""An image that anybody made: each check on a small one with a fault, and without."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.engine import BuildRequest, Engine, buildx
from builder.pipeline.verify import RECEIPT_TYPE
from tests.devicecode.packing import digest, layout, tar
from tests.devicecode.writer import container, library, linked, sass
from tests.emulators.answers import serving
from tests.trust.signing import Pair, Repository

KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
SITE = "opt/venv/lib/python3.11/site-packages"
Files = dict[str, tuple[bytes, int, int]]
"""Content, mode and owner of each file, by its path."""

SOUND: Files = {
    f"{SITE}/.lock": (b"uv's", 0o666, 0),
    AUTHORITIES: (b"certificates", 0o644, 0),
    "usr/bin/python3.11": (b"\x7fELF", 0o755, 0),
    "usr/bin/su": (b"\x7fELF", 0o4755, 0),
    "etc/passwd": (b"root:x:0:0::/:/bin/sh", 0o644, 0),
    "usr/lib/libkernels.so": (library(container(sass(70))), 0o644, 0),
    f"{SITE}/_virtualenv.pth": (b"import _virtualenv\n", 0o644, 0),
}
CONFIG: dict[str, Any] = {
    "Entrypoint": ["python", "-m", "train"],
    "User": "1000:1000",
    "Env": ["PATH=/opt/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"],
}


def layer(files: Files, links: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode, owner) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid = len(content), mode, owner
            archive.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def image(folder: Path, *layers: bytes, history: tuple[str, ...] = (), **config: Any) -> Path:
    """An OCI layout in an archive, as `docker save` writes it, of a sound image with changes."""
    below = layer(SOUND, {"opt/bin/python": "../../usr/bin/python3.11"})
    stack = (below, *layers)
    steps = [{"created_by": line} for line in ("COPY rootfs /", *history)]
    configuration = {
        "rootfs": {"diff_ids": list(map(digest, stack))},
        "config": CONFIG | config,
        "history": steps,
    }
    path = folder / "image.tar"
    files = layout(json.dumps(configuration).encode(), *map(gzip.compress, stack))
    path.write_bytes(tar(files))
    return path


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def proven(path: Path | str, *options: str) -> tuple[int, dict[str, Any], str]:
    """The exit code of `builder prove`, its checks by name, and the error."""
    result = CliRunner().invoke(app, ["prove", str(path), "--json", *options])
    if not result.stdout:
        return getattr(result.exception, "exit_code", result.exit_code), {}, str(result.exception)
    data = json.loads(result.stdout)
    code = getattr(result.exception, "exit_code", result.exit_code)
    return code, {check["check"]: check for check in data["checks"]}, str(result.exception)


def test_a_sound_image_passes_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    code, checks, _ = proven(image(tmp_path), "--gpu", "v100")
    status = {name: check["status"] for name, check in checks.items()}
    assert status.pop("loader") == "not there", "it holds no TensorFlow"
    assert status.pop("start") == "not there", "it is not in the engine"
    assert set(status.values()) == {"passed"}, checks
    assert code == 0
    assert checks["device-code"]["note"].startswith("V100 7.0: native")
    _, checks, _ = proven(image(tmp_path))
    assert checks["device-code"]["status"] == "not there", "no GPU is named"
    shown = CliRunner().invoke(app, ["prove", str(image(tmp_path)), "--gpu", "v100"]).stdout
    assert "entry-point   passed    python -m train" in shown


OURS = {"training-image-factory.accelerator": "V100"}
FAULTS: list[tuple[str, Files, dict[str, Any], str]] = [
    ("device-code", {"x.so": (library(container(sass(90))), 0o644, 0)}, {}, "missing"),
    ("environment", {}, {"Env": ["CUDA_VISIBLE_DEVICES="]}, "hides every GPU"),
    ("environment", {}, {"Env": ["CUDA_INJECTION64_PATH=/none.so"]}, "not in the image"),
    ("machine", {}, {"StopSignal": "SIGQUIT"}, "STOPSIGNAL"),
    ("certificates", {}, {"Env": ["SSL_CERT_FILE=/none.pem"]}, "SSL_CERT_FILE=/none.pem names"),
    ("entry-point", {}, {"Entrypoint": ["pyhton"]}, "starts pyhton, which is not there in PATH"),
    ("entry-point", {"opt/bin/python": (b"#!", 0o644, 0)}, {}, "/opt/bin/python may not be exec"),
    ("permissions", {}, {"User": "", "Labels": OURS}, "runs as root"),
    ("permissions", {"opt/su": (b"x", 0o4755, 0)}, {}, "another user's rights: /opt/su"),
    ("permissions", {"opt/tool": (b"x", 0o4755, 0)}, {}, "another user's rights: /opt/tool"),
    ("permissions", {f"{SITE}/a.py": (b"x", 0o666, 0)}, {}, "everybody may write to what"),
    ("permissions", {"etc/passwd": (b"x", 0o644, 1000)}, {}, "can change accounts or the loader"),
    ("driver", {"usr/lib/libcuda.so.550.1": (b"", 0o644, 0)}, {}, "libraries of the driver"),
    ("secrets", {"root/id.pem": (KEY, 0o600, 0)}, {}, "holds a private key: /root/id.pem"),
    ("secrets", {}, {"Env": ["A=ghp_" + "a1B2c3D4e" * 4]}, "environment (A) holds a token"),
    ("pth", {f"{SITE}/a.pth": (b"import _virtualenv\nimport os; x()", 0o644, 0)}, {}, "x()"),
    (
        "loader",
        {
            f"{SITE}/tensorflow/libtensorflow_framework.so.2": (b"\x7fELF", 0o644, 0),
            f"{SITE}/tensorflow-2.21.0.dist-info/RECORD": (
                b"tensorflow/libtensorflow_framework.so.2,,4\n", 0o644, 0,
            ),
        },
        {},
        "TensorFlow 2.21.0 opens libcudart.so.12, which is not in the image",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "files", "config", "message"), FAULTS)
def test_a_fault_is_refused_by_its_check(
    check: str, files: Files, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    code, checks, error = proven(image(tmp_path, layer(files, {}), **config), "--gpu", "v100")
    assert code == 4
    assert checks[check]["status"] == "refused"
    assert any(message in problem["message"] for problem in checks[check]["problems"])
    assert all(problem["fix"] for problem in checks[check]["problems"])
    assert "image.tar" in error
    given = ["prove", str(tmp_path / "image.tar"), "--gpu", "v100", "--github"]
    assert f"::error title={check}::" in CliRunner().invoke(app, given).stdout


def test_what_others_may_do_is_a_finding_and_refuses_an_image_of_ours(tmp_path: Path) -> None:
    """Most images run as root, and leave the driver's folder to the container toolkit."""
    usual: dict[str, Any] = {"User": "jovyan", "Env": ["PATH=/opt/bin:/usr/bin"]}
    red_hat: Files = {"usr/libexec/sssd/krb5_child": (b"", 0o4755, 0)}
    code, checks, _ = proven(image(tmp_path, layer(red_hat, {}), **usual), "--gpu", "v100")
    messages = [finding["message"] for finding in checks["machine"]["findings"]]
    assert code == 0
    assert "USER jovyan is a name" in messages[0]
    assert "has no /usr/local/nvidia/lib64" in messages[1]
    path = image(tmp_path, User="")
    assert proven(path)[1]["permissions"]["findings"][0]["fix"].endswith("USER 1000:1000")
    shown = CliRunner().invoke(app, ["prove", str(path)]).stdout
    assert "    finding: the image runs as root" in shown
    github = CliRunner().invoke(app, ["prove", str(path), "--github"]).stdout
    assert github.startswith("::warning title=permissions::the image runs as root")
    path = image(tmp_path, User="", StopSignal="SIGQUIT")
    written = json.loads(CliRunner().invoke(app, ["prove", str(path), "--sarif"]).stdout)
    (scan,) = written["runs"]
    assert {"permissions", "machine"} < {rule["id"] for rule in scan["tool"]["driver"]["rules"]}
    seen = [(row["ruleId"], row["level"]) for row in scan["results"]]
    assert seen == [("machine", "error"), ("permissions", "warning")]
    assert all(row["locations"] and row["message"]["text"] for row in scan["results"])
    code, checks, _ = proven(image(tmp_path, **usual, Labels=OURS), "--gpu", "v100")
    assert (code, checks["machine"]["status"], checks["machine"]["findings"]) == (4, "refused", [])


def test_a_library_that_ld_so_would_not_find_is_named(tmp_path: Path) -> None:
    """A framework that cannot be imported is refused; any other module may never be asked for."""
    name = "cpython-311-x86_64-linux-gnu.so"
    torch: Files = {
        f"{SITE}/torch/_C.{name}": (linked("libtorch.so", "libcuda.so.1"), 0o755, 0),
        f"{SITE}/torch/lib/libtorch.so": (linked("libcudart.so.12"), 0o755, 0),
        f"{SITE}/cv2/cv2.abi3.so": (linked("libGL.so.1", "libtorch.so"), 0o755, 0),
    }
    code, checks, error = proven(image(tmp_path, layer(torch, {})))
    assert code == 4
    assert f"torch/_C.{name} cannot be loaded: libtorch.so needs libcudart.so.12" in error
    (finding,) = checks["loader"]["findings"]
    assert (
        "cv2.abi3.so needs libGL.so.1; libtorch.so needs libcudart.so.12, and" in finding["message"]
    )
    assert checks["loader"]["note"].startswith("0 modules")
    runtime: Files = {"usr/local/cuda/lib64/libcudart.so.12.4": (linked(), 0o755, 0)}
    links = {"usr/local/cuda/lib64/libcudart.so.12": "libcudart.so.12.4"}
    found = image(tmp_path, layer(torch, {}), layer(runtime, links))
    assert [proven(found)[1]["loader"]["status"] for _ in range(2)] == ["passed"] * 2, "kept, too"


def test_where_the_bytes_go_and_which_step_made_them(tmp_path: Path) -> None:
    """Each byte is counted once, and the line to change is named."""
    pip = {
        "root/.cache/pip/http/a": (bytes(2000), 0o644, 0),
        "root/.cache/uv/b": (bytes(500), 0o644, 0),
        "opt/conda/pkgs/c.conda": (bytes(300), 0o644, 0),
        "var/lib/apt/lists/d": (bytes(200), 0o644, 0),
        "usr/lib/libe.a": (bytes(100), 0o644, 0),
        "data/big": (bytes(4000), 0o644, 0),
        "tmp/wheel": (bytes(3000), 0o644, 0),
        "opt/two.so": (library(container(sass(70), sass(90, size=640))), 0o644, 0),
    }
    chown: Files = {"data/big": (bytes(4000), 0o644, 1000), "tmp/.wh.wheel": (b"", 0, 0)}
    lines = ("RUN pip install", "RUN chown -R 1000 /data")
    path = image(tmp_path, layer(pip, {}), layer(chown, {}), history=lines)
    result = CliRunner().invoke(app, ["prove", str(path), "--json", "--gpu", "v100"])
    saved = json.loads(result.stdout)["could_be_saved"]
    assert [(row["kind"], row["size"], row["line"]) for row in saved] == [
        ("written again", 4000, lines[1]),
        ("deleted later", 3000, lines[0]),
        ("pip's cache", 2000, lines[0]),
        ("device code of other GPUs", saved[3]["size"], lines[0]),
        ("uv's cache", 500, lines[0]),
        ("conda's cache", 300, lines[0]),
        ("the system's packages", 200, lines[0]),
        ("static libraries", 100, lines[0]),
    ]
    assert 640 <= saved[3]["size"] < 1000
    assert all(row["fix"] and row["example"] for row in saved)


def test_what_is_no_image_and_what_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x")
    assert proven(tmp_path / "a.tar")[0] == 2
    assert proven(image(tmp_path), "--gpu", "tpu-v3")[0] == 2
    assert proven(tmp_path / "none.tar")[0] == 2
    code, _, error = proven(image(tmp_path), "--run", "true")
    assert (code, error) == (
        2,
        f"--run: {tmp_path}/image.tar is not in the engine, not started",
    )
    with serving({"/v2/a/b/manifests/c": (403, {}, b"{}")}) as server:
        assert proven(f"127.0.0.1:{server.server_port}/a/b:c")[0] == 3


@pytest.mark.network
def test_a_receipt_lies_beside_an_image_of_others_and_is_asked_for_by_name(
    repository: Repository, ours: Pair, other: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never stands for the proof that an image of ours, or a job, asks for."""
    monkeypatch.setenv("BUILDER_ENGINE", "machine")
    made, name = repository.image("theirs", "theirs"), f"{repository.reference}:theirs"
    pinned = str(repository.reference.at(made.digest))
    run = CliRunner()
    assert "is not proven" in str(run.invoke(app, ["verify", pinned, "--suite", "image"]).exception)
    result = run.invoke(app, ["prove", name, "--push-receipt", "--key", str(ours.path), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["image"]) == (0, pinned), result.exception
    for pair, problem in ((ours, ""), (other, "is not proven")):
        options = ["--suite", "image", "--key", str(pair.public), "--json"]
        result = run.invoke(app, ["verify", pinned, *options])
        assert problem in str(result.exception or "")
        if not problem:
            verified = json.loads(result.stdout)
            assert verified["receipt"]["suite"] == "image"
            assert verified["signer"] == str(pair.public)
    refused = str(run.invoke(app, ["verify", pinned]).exception)
    assert "of the suite image, the image needs trainer" in refused
    listed = repository.client.referrers(repository.reference.repository, made.digest, RECEIPT_TYPE)
    assert len(listed) == 1


def test_a_receipt_is_pushed_of_nothing_else(tmp_path: Path) -> None:
    assert "is in no registry" in proven("a.tar", "--push-receipt")[2]
    assert "--key signs a receipt" in proven(image(tmp_path), "--key", "k")[2]


TAG = "prove-test:latest"


@pytest.mark.engine
def test_an_image_in_the_engine_is_started_as_a_service_would(
    engine: Engine, context: Callable[..., Path]
) -> None:
    """With its own user, a root that it cannot write to, no network; and the factory's own code
    reads the same image as from a registry."""
    folder = context('USER 1000:1000\nCMD ["/bin/busybox", "true"]\n')
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (TAG,)))
    try:
        started = proven(TAG)[1]["start"]
        assert started["note"].startswith("ended well"), started
        for command, status, message in (
            ("busybox test $(busybox id -u) = 1000 && touch /smoke/job/a", "passed", ""),
            ("busybox grep -q eth0 /proc/net/dev", "refused", "failed with exit code 1"),
            ("touch /x", "refused", "writes outside its job folder: /x"),
        ):
            code, checks, _ = proven(TAG, "--run", command)
            assert checks["start"]["status"] == status, checks["start"]
            assert code == (4 if message else 0)
            assert all(message in problem["message"] for problem in checks["start"]["problems"])
    finally:
        engine.client.images.remove(TAG, force=True)
