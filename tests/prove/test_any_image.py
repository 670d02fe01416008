"""An image that anybody made: each check on a small one with a fault, and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from typer.testing import CliRunner

from builder.cli.group import app
from builder.devicecode.library import Library
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import holding
from builder.engine import BuildRequest, Engine, buildx
from builder.frameworks.libraries import CUDNN_PARTS
from builder.image.plan import HOOK
from builder.prove import wheels
from tests.conftest import Run
from tests.devicecode.writer import Part, container, digest, library, linked, sass
from tests.emulators.answers import serving
from tests.prove.reading import SITE, Files, archive, layer
from tests.shown import shown, unlike

KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
COLOREDLOGS = (
    b"""import os; exec('try: __import__("coloredlogs").auto_install() if os.environ.get("""
    b""""COLOREDLOGS_AUTO_INSTALL") else None\\nexcept ImportError: pass')\n"""
)
SOUND: Files = {
    f"{SITE}/.lock": (b"uv's", 0o666, 0),
    AUTHORITIES: (b"certificates", 0o644, 0),
    "app/train.py": (b"", 0o644, 0),
    "usr/bin/python3.11": (linked(interpreter="/lib64/ld-linux-x86-64.so.2"), 0o755, 0),
    "usr/bin/su": (b"\x7fELF", 0o4755, 0),
    "etc/passwd": (b"root:x:0:0::/:/bin/sh\njovyan:x:1001:100::/:\n", 0o644, 0),
    "usr/lib/libkernels.so": (library(container(sass(70))), 0o644, 0),
    f"{SITE}/_virtualenv.pth": (b"import _virtualenv\n", 0o644, 0),
    f"{SITE}/coloredlogs.pth": (COLOREDLOGS, 0o644, 0),
    f"{SITE}/_cuda_bindings_redirector.pth": (b"import _cuda_bindings_redirector", 0o644, 0),
    f"{SITE}/{HOOK}.pth": (f'import {HOOK}; {HOOK}.announce("7.0")\n'.encode(), 0o644, 0),
}
CONFIG: dict[str, Any] = {
    "Entrypoint": ["python", "-m", "train"],
    "WorkingDir": "/app",
    "User": "1000:1000",
    "Env": ["PATH=/opt/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"],
}


def image(folder: Path, *layers: bytes, history: tuple[str, ...] = (), **config: Any) -> Path:
    """A sound image with changes, as `docker save` writes it."""
    below = layer(SOUND, {"opt/bin/python": "../../usr/bin/python3.11"})
    steps = ("COPY rootfs /", *history)
    path = folder / "image.tar"
    return archive(path, below, *layers, config=CONFIG | config, history=steps)


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


@pytest.fixture
def ask(tmp_path: Path, builder: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `builder prove image.tar` shows."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: shown(builder("prove", "image.tar", *words))


def test_a_sound_image_passes_and_what_it_lacks_is_said(
    tmp_path: Path, ask: Callable[..., str]
) -> None:
    image(tmp_path)
    sound = ask("--gpu", "v100")
    assert sound == snapshot("""\
device-code   passed       V100 7.0: native
combinations  not there    no Python packages, and no library of CUDA's
environment   passed       2 variables
machine       passed
driver        passed
permissions   passed       USER 1000
shadows       passed       the program's folder: /app
loader        not there    no compiled module of Python
installed     not there    no Python packages
certificates  passed       /etc/ssl/certs/ca-certificates.crt
entry-point   passed       python -m train
secrets       passed       1 layers
pth           passed       4 known .pth hooks
start         not there    only an image in the engine is started (docker load,
.. docker pull)
compile       not there    only an image in the engine is started (docker load,
.. docker pull)
|   = read image.tar  N s
""")
    assert unlike(ask(), sound) == snapshot("""\
- device-code   passed       V100 7.0: native
+ device-code   not there    no GPU is named (--gpu)
""")


OURS = {"training-image-factory.accelerator": "V100"}
FAULTS: list[tuple[str, Files, dict[str, Any], str]] = [
    ("certificates", {}, {"Env": ["SSL_CERT_FILE=/none.pem"]}, "SSL_CERT_FILE=/none.pem names"),
    ("entry-point", {"opt/bin/python": (b"#!", 0o644, 0)}, {}, "/opt/bin/python may not be exec"),
    ("permissions", {}, {"User": "", "Labels": OURS}, "runs as root"),
    ("permissions", {"opt/su": (b"x", 0o4755, 0)}, {}, "another user's rights: /opt/su"),
    ("combinations", {"usr/lib/libcudnn.so.9.28.0": (b"", 0o644, 0)}, {}, "cuDNN 9.28.0: "),
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


@pytest.mark.parametrize(
    ("name", "status"), [("libcusparseLt.so.0", "passed"), ("libcusparse.so.12", "refused")]
)
def test_the_doubt_of_a_library_that_one_feature_needs_is_a_finding(
    name: str, status: str, tmp_path: Path
) -> None:
    """NVIDIA's own cuSPARSELt without its RECORD, an empty one of another library."""
    hole = Part(".rodata2", bytes(70_000))
    whole = library(container(sass(70), sass(90)))
    doubtful = library(container(sass(70), sass(90)), more=(hole,))
    for gpu in ("h100", "v100"):
        files = {f"usr/lib/{name}": doubtful, "usr/lib/libkernels.so": whole}
        path = image(tmp_path, layer({path: (it, 0o644, 0) for path, it in files.items()}))
        found = proven(path, "--gpu", gpu)[1]["device-code"]
        assert found["status"] == status
        assert len(found["findings"]) == (status == "passed")
        assert "65,536 zeros in a row" in str(found)


def test_a_half_pruned_library_whose_record_agrees_is_refused(tmp_path: Path) -> None:
    """What the wheel of this version carries is known."""
    cublas, name = "nvidia/cublas/lib/libcublas.so.12", "nvidia_cublas_cu12"
    locked = wheels.known(
        Library(f"/{cublas}", 0, package="nvidia-cublas-cu12", version="12.9.1.4")
    )
    assert locked
    every = holding(locked, compute_capability("7.0"))
    assert every > 100
    for version, containers, message in (
        ("12.9.1.4", every - 1, f"{every - 1} of {every} containers for 7.0 are there"),
        ("12.9.1.4", every, ""),
        ("12.9.1.5", 1, ""),
    ):
        pruned = library(*(container(sass(70)) for _ in range(containers)))
        record = f"{cublas},sha256={digest(pruned)},{len(pruned)}\n".encode()
        files: Files = {
            f"{SITE}/{cublas}": (pruned, 0o644, 0),
            f"{SITE}/{name}-{version}.dist-info/RECORD": (record, 0o644, 0),
        }
        found = proven(image(tmp_path, layer(files)), "--gpu", "v100")[1]["device-code"]
        assert [message in row["message"] for row in found["problems"]] == [True] * bool(message)


def test_what_others_may_do_is_a_finding_and_refuses_an_image_of_ours(
    tmp_path: Path, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most images run as root, and leave the driver's folder to the container toolkit."""
    usual: dict[str, Any] = {"User": "jovyan", "Env": ["PATH=/opt/bin:/usr/bin"]}
    red_hat: Files = {"usr/libexec/sssd/krb5_child": (b"", 0o4755, 0)}
    image(tmp_path)
    sound = ask("--gpu", "v100")
    image(tmp_path, layer(red_hat, {}), **usual)
    assert unlike(ask("--gpu", "v100"), sound) == snapshot("""\
- environment   passed       2 variables
+ environment   passed       1 variables
+     finding: LD_LIBRARY_PATH has no /usr/local/nvidia/lib64: Vertex AI and GKE mount
+ .. the driver there, and the program finds no GPU
+     instead: add /usr/local/nvidia/lib64 to LD_LIBRARY_PATH in the Dockerfile's ENV,
+ .. or take another base
+     finding: USER jovyan is a name: a pod with runAsNonRoot does not start, because
+ .. its node cannot tell that this is not root
+     instead: write the number: USER 1000:1000
- permissions   passed       USER 1000
+ permissions   passed       USER jovyan
- secrets       passed       1 layers
+ secrets       passed       2 layers
""")
    path = image(tmp_path, User="", StopSignal="SIGQUIT")
    said = ask()
    assert unlike(said, sound) == snapshot("""\
- device-code   passed       V100 7.0: native
+ device-code   not there    no GPU is named (--gpu)
- machine       passed
+ machine       refused
+     STOPSIGNAL SIGQUIT: Docker and Kubernetes send that in place of SIGTERM, so the
+ .. program is killed before it saves
+     fix: take STOPSIGNAL out of the Dockerfile, or write SIGTERM
- permissions   passed       USER 1000
+ permissions   passed       USER root
+     finding: the image runs as root: its outputs would belong to root
+     instead: end the Dockerfile with USER 1000:1000
+ | error: image.tar: STOPSIGNAL SIGQUIT: Docker and Kubernetes send that in place of
+ | .. SIGTERM, so the program is killed before it saves
+ | fix:   take STOPSIGNAL out of the Dockerfile, or write SIGTERM
+ exit code 4
""")
    table, _, _ = said.partition("|   = read")
    with monkeypatch.context() as there:
        there.setenv("GITHUB_ACTIONS", "true")
        annotated = ask()
        assert annotated.startswith(table)
        assert annotated.removeprefix(table) == snapshot("""\
::error title=machine::STOPSIGNAL SIGQUIT: Docker and Kubernetes send that in place
.. of SIGTERM, so the program is killed before it saves; take STOPSIGNAL out of the
.. Dockerfile, or write SIGTERM
::warning title=permissions::the image runs as root: its outputs would belong to
.. root; end the Dockerfile with USER 1000:1000
|   = read image.tar  N s
| error: image.tar: STOPSIGNAL SIGQUIT: Docker and Kubernetes send that in place of
| .. SIGTERM, so the program is killed before it saves
| fix:   take STOPSIGNAL out of the Dockerfile, or write SIGTERM
exit code 4
""")
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
    _in_lib = partial(linked, runpath="$ORIGIN/lib")
    torch: Files = {
        f"{SITE}/torch/_C.{name}": (_in_lib("libtorch.so", "libcuda.so.1"), 0o755, 0),
        f"{SITE}/torch/lib/libtorch.so": (linked("libcudart.so.12"), 0o755, 0),
        f"{SITE}/cv2/cv2.abi3.so": (linked("libGL.so.1", "libtorch.so"), 0o755, 0),
    }
    code, checks, error = proven(image(tmp_path, layer(torch, {})))
    assert code == 4
    assert f"torch/_C.{name} cannot be loaded: libtorch.so needs libcudart.so.12" in error
    (finding,) = checks["loader"]["findings"]
    assert (
        "cv2.abi3.so needs libGL.so.1, and the image lacks it; libtorch.so needs"
        in finding["message"]
    )
    assert checks["loader"]["note"].startswith("0 modules")
    runtime: Files = {
        "usr/local/cuda/lib64/libcudart.so.12.4": (linked(), 0o755, 0),
        "etc/ld.so.conf": (b"/usr/local/cuda/lib64\n", 0o644, 0),
    }
    links = {"usr/local/cuda/lib64/libcudart.so.12": "libcudart.so.12.4"}
    found = image(tmp_path, layer(torch, {}), layer(runtime, links))
    assert [proven(found)[1]["loader"]["status"] for _ in range(2)] == ["passed"] * 2, "kept, too"


EXTENSION = "cpython-311-x86_64-linux-gnu.so"
PLUGIN = f"{SITE}/jax_plugins/xla_cuda12/xla_cuda_plugin.so"
PLUGIN_13 = f"{SITE}/jax_plugins/xla_cuda13/xla_cuda_plugin.so"
TORCH = (f"{SITE}/torch/_C.{EXTENSION}", f"{SITE}/torch/lib/libtorch_cuda.so")
CUDA = "cudart.so.12 cublas.so.12 cublasLt.so.12 cufft.so.11 cusolver.so.11 cusparse.so.12"
CUDA_13 = "cudart.so.13 cublas.so.13 cublasLt.so.13 cufft.so.12 cusolver.so.12 cusparse.so.12"
"""The files of the wheels that jax[cuda12] and jax[cuda13] install, cuda-toolkit 12.9 and 13.5."""


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((f"{SITE}/jaxlib/_jax.so",), "JAX has no plugin for a GPU: it trains on the CPU"),
        ((f"{SITE}/jaxlib/_jax.so", PLUGIN), "JAX opens libcupti.so.12, which is not in the image"),
        ((f"{SITE}/jaxlib/_jax.so", PLUGIN, "/usr/lib/libcupti.so.12"), ""),
        ((f"{SITE}/jaxlib/_jax.so", PLUGIN_13), "JAX opens libcupti.so.13, which is not"),
        ((f"{SITE}/jaxlib/_jax.so", PLUGIN_13, "/usr/lib/libcupti.so.13"), ""),
        ((f"{SITE}/jaxlib/_jax.so", *TORCH), ""),
        ((f"{SITE}/torch/_C.{EXTENSION}",), "PyTorch was built without CUDA"),
        (TORCH, ""),
    ],
)
def test_jax_and_pytorch_are_known_by_their_modules_and_asked_for_a_gpu(
    paths: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """Whoever installed them, and with no RECORD: so conda's are known, too."""
    cuda = CUDA_13 if PLUGIN_13 in paths else CUDA
    names = [*f"{cuda} cudnn.so.9 nccl.so.2".split(), *(f"cudnn_{p}.so.9" for p in CUDNN_PARTS[9])]
    there = [*paths, *(f"/usr/lib/lib{name}" for name in names)]
    files: Files = {path: (linked(), 0o755, 0) for path in there}
    _, checks, _ = proven(image(tmp_path, layer(files)), "--gpu", "v100")
    problems = [problem["message"] for problem in checks["loader"]["problems"]]
    assert [text[: len(message)] for text in problems] == ([message] if message else [])
    beside = [row["message"] for row in checks["loader"]["findings"] if "JAX" in row["message"]]
    assert len(beside) == ("torch" in paths[-1] and "jaxlib" in paths[0]), "PyTorch uses the GPU"
    assert proven(image(tmp_path, layer(files)))[1]["loader"]["problems"] == [], "for the CPU"


def test_where_the_bytes_go_and_which_step_made_them(tmp_path: Path) -> None:
    """Each byte is counted once, and the line to change is named."""
    pip = {
        "root/.cache/pip/http/a": (bytes(2000), 0o644, 0),
        "root/.cache/uv/b": (bytes(400), 0o644, 0),
        "opt/uv/cache/archive-v0/b": (bytes(100), 0o644, 0),
        "opt/conda/pkgs/c.conda": (bytes(300), 0o644, 0),
        "var/lib/apt/lists/d": (bytes(200), 0o644, 0),
        "usr/lib/libe.a": (bytes(100), 0o644, 0),
        "usr/lib/gcc/x86_64-linux-gnu/12/libgcc.a": (bytes(100), 0o644, 0),  # of the compiler
        "data/big": (bytes(4000), 0o644, 0),
        "tmp/wheel": (bytes(3000), 0o644, 0),
        "opt/two.so": (library(container(sass(70), sass(90, size=640))), 0o644, 0),
    }
    chown: Files = {
        "data/big": (bytes(4000), 0o644, 1000),
        "tmp/.wh.wheel": (b"", 0, 0),
        "usr/lib/two.so": pip["opt/two.so"],
    }
    lines = ("RUN pip install", "RUN chown -R 1000 /data")
    path = image(tmp_path, layer(pip, {}), layer(chown, {}), history=lines)
    result = CliRunner().invoke(app, ["prove", str(path), "--json", "--gpu", "v100"])
    saved = json.loads(result.stdout)["could_be_saved"]
    assert [(row["kind"], row["size"], row["line"]) for row in saved] == [
        ("written again", 4000, lines[1]),
        ("deleted later", 3000, lines[0]),
        ("pip's cache", 2000, lines[0]),
        ("copies of a library", len(pip["opt/two.so"][0]), lines[1]),
        ("device code of other GPUs", saved[4]["size"], lines[0]),
        ("uv's cache", 500, lines[0]),
        ("conda's cache", 300, lines[0]),
        ("the system's packages", 200, lines[0]),
        ("static libraries", 100, lines[0]),
    ]
    assert 640 <= saved[4]["size"] < 1000
    assert all(row["fix"] and row["example"] for row in saved)


@pytest.mark.parametrize("upper", [{"a": (b"", 0o644, 0)}, {"root/.wh..cache": (b"", 0, 0)}])
def test_what_uv_links_to_its_cache_is_read_where_it_is_installed(
    upper: Files, tmp_path: Path
) -> None:
    """Also once the cache is gone; and its bytes are no waste, because they have two names."""
    cached, names = "root/.cache/uv/archive-v0/x", ("torch/lib/libtorch_cuda.so", "a.pth")
    contents = (library(container(sass(90))), b"import os; x()")
    files: Files = {
        f"{cached}/{name}": (data, 0o644, 0) for name, data in zip(names, contents, strict=True)
    }
    installed = layer(files, hard={f"{SITE}/{name}": f"{cached}/{name}" for name in names})
    path = image(tmp_path, installed, layer(upper), history=("RUN uv pip install", "RUN rm"))
    _, checks, error = proven(path, "--gpu", "v100")
    assert f"{SITE}/{names[0]}" in error
    assert checks["device-code"]["status"] == "refused"
    assert f"{SITE}/a.pth" in str(checks["pth"]["problems"])
    result = CliRunner().invoke(app, ["prove", str(path), "--json", "--gpu", "h100"])
    assert json.loads(result.stdout)["could_be_saved"] == []
    result = CliRunner().invoke(app, ["prove", str(path), "--json"])
    saved = {row["example"]: row["kind"] for row in json.loads(result.stdout)["could_be_saved"]}
    assert saved[f"{SITE}/{names[0]}"] == "CUDA in an image for the CPU"


def test_a_fleet_gets_an_answer_for_each_gpu_and_its_driver(tmp_path: Path) -> None:
    cublas: Files = {
        "usr/lib/libcublas.so.12": (library(container(sass(70), sass(75), sass(90))), 0o644, 0),
        "usr/lib/libkernels.so": (library(container(sass(70), sass(75), sass(90))), 0o644, 0),
    }
    path = image(tmp_path, layer(cublas))
    code, checks, _ = proven(path, "--nodes", "T4:535,H100:550.54.15")
    assert (code, checks["nodes"]["status"]) == (0, "passed")
    assert checks["nodes"]["note"] == "T4 with driver 535: native; H100 with driver 550: native"
    assert checks["device-code"]["note"].startswith("T4 7.5"), "judged for the first"
    code, checks, error = proven(path, "--nodes", "T4:470,A100:550", "--gpu", "h100")
    assert code == 4 and len(checks["nodes"]["problems"]) == 2
    assert "T4 with driver 470: the image needs driver 525 or newer (CUDA 12" in error
    assert "A100 with driver 550: 8.0: older minor" not in str(checks["nodes"]["problems"])
    env = [*CONFIG["Env"], "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=525,driver<526"]
    path = image(tmp_path, layer(cublas), Env=env)
    for node, starts in (("T4:550", True), ("T4:535", False), ("T4:525", True)):
        problems = proven(path, "--nodes", node)[1]["nodes"]["problems"]
        assert ["container toolkit does not" in row["message"] for row in problems] == (
            [] if starts else [True]
        )
    assert proven(path, "--nodes", "T4")[0] == 2
    assert proven(path, "--nodes", "T9:535")[0] == 2


def test_what_is_no_image_and_what_cannot_be_reached(
    tmp_path: Path, ask: Callable[..., str], builder: Run
) -> None:
    assert ask() == snapshot("""\
|   x read image.tar  N s  image.tar: no such file or folder
| error: image.tar: no such file or folder
| fix:   correct the path
exit code 2
""")
    (tmp_path / "image.tar").write_bytes(b"x")
    assert ask() == snapshot("""\
|   x read image.tar  N s  image.tar: no readable archive: truncated header
| error: image.tar: no readable archive: truncated header
| fix:   name what `docker save` wrote, or an OCI image layout
exit code 2
""")
    image(tmp_path)
    assert ask("--push-receipt") == snapshot("""\
| error: image.tar: is in no registry
| fix:   name it as HOST/REPOSITORY:TAG
exit code 2
""")
    assert ask("--key", "k") == snapshot("""\
| error: --key signs a receipt, and none is pushed
| fix:   add --push-receipt
exit code 2
""")
    assert ask("--gpu", "tpu-v3") == snapshot("""\
| error: TPU is no GPU
| fix:   name a GPU, such as V100, or 7.0
exit code 2
""")
    assert ask("--run", "true") == snapshot("""\
|   = read image.tar  N s
| error: --run: image.tar is not in the engine, not started
| fix:   docker pull or docker load it, and name it as the engine does
exit code 2
""")
    with serving({"/v2/a/b/manifests/c": (404, {}, b"{}")}) as server:
        name = f"127.0.0.1:{server.server_port}/a/b:c"
        assert shown(builder("prove", name)) == snapshot("""\
|   x read 127.0.0.1:PORT/a/b:c  N s  127.0.0.1:PORT/a/b:c: there is no such image
| error: 127.0.0.1:PORT/a/b:c: there is no such image
| fix:   correct its name
exit code 3
""")
        assert builder("prove", name, "--push-receipt")[0] == 3
    with serving({"/v2/a/b/manifests/c": (403, {}, b"{}")}) as server:
        name = f"127.0.0.1:{server.server_port}/a/b:c"
        assert shown(builder("prove", name)) == snapshot("""\
|   x read 127.0.0.1:PORT/a/b:c  N s  not logged in to 127.0.0.1:PORT: read access
| .. to a/b needs a login
| error: not logged in to 127.0.0.1:PORT: read access to a/b needs a login
| fix:   run: docker login 127.0.0.1:PORT
exit code 3
""")


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
        lines = (folder / "Dockerfile").read_text().replace('"true"', '"sh", "/no.sh"')
        (folder / "Dockerfile").write_text(lines)
        buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (TAG,)))
        code, checks, _ = proven(TAG)
        assert (code, checks["start"]["status"]) == (4, "refused"), checks["start"]
    finally:
        engine.client.images.remove(TAG, force=True)
