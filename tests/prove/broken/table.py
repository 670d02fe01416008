"""Sixty ways to break a good image, each with the check that has to name it.

Rows with `lines` are images: a few lines of Dockerfile on the good one. Rows with `change` are
folders that hold what an image for a GPU holds (tests/frameworks/standins.py). A row that says
nothing is known to pass: it lowers the score until a check names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.frameworks.standins import LIBRARIES, Image, number, shared_object

SITE = "/opt/venv/lib/python3.11/site-packages"
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
MIXED = "a1B2c3D4e"
KEY = "-----BEGIN " + "PRIVATE KEY-----"
CAPABILITY = (
    "import os; os.setxattr('/usr/local/bin/own', 'security.capability', "
    "bytes.fromhex('0100000280000000000000000000000000000000'))"
)


@dataclass(frozen=True)
class Breakage:
    """One way to break an image.

    check: which has to name it, by a message that holds `says` ("": none does). kind: of the
    accelerator that the image is asked about.
    """

    name: str
    check: str
    says: str
    lines: str = ""
    kind: str = "cpu"
    change: Callable[[Image], object] | None = None


def _gpu(check: str, says: str, lines: str) -> Breakage:
    return Breakage(lines.partition("\n")[0], check, says, lines, "gpu")


def _files(name: str, check: str, says: str, lines: str) -> Breakage:
    return Breakage(name, check, says, f"USER 0\nRUN {lines}\nUSER 1000:1000")


def _env(check: str, says: str, lines: str) -> Breakage:
    return Breakage(lines, check, says, lines)


def _starts(name: str, check: str, says: str, entry: str, program: str = "") -> Breakage:
    copied = f"COPY --chmod=755 <<'END' /app/broken.py\n{program}\nEND\n" if program else ""
    return Breakage(name, check, says, f"{copied}ENTRYPOINT {entry}")


def _library(name: str, says: str, change: Callable[[Image], object], lines: str = "") -> Breakage:
    return Breakage(name, "loader", says, lines, "gpu", change)


def _elsewhere(image: Image) -> None:
    folder = image.root / "opt/elsewhere"
    folder.mkdir(parents=True)
    image.library("libcusolver.so.11").rename(folder / "libcusolver.so.11")


def _half_nvrtc(image: Image) -> None:
    path = "cuda_nvrtc/lib/libnvrtc.so.12"
    log = {"nvrtcGetProgramLogSize": number(0), "nvrtcGetProgramLog": number(0)}
    functions = {**LIBRARIES[path], **log, "nvrtcCompileProgram": number(7)}
    shared_object(image.nvidia / path, functions)


def _old_first(image: Image) -> None:
    shared_object(image.root / "usr/lib/libcudnn.so.9", {"cudnnGetVersion": number(90101)})


PYTHON = '["python", "/app/broken.py"]'
MAIN = "from trainer.task import main\nsys.exit(main())"


def _trainer(name: str, check: str, says: str, change: str) -> Breakage:
    program = f'import sys\nsys.path.insert(0, "/app")\n{change}\n{MAIN}'
    return _starts(name, check, says, PYTHON, program)


TABLE = (
    _gpu("environment", "hides every GPU", "ENV CUDA_VISIBLE_DEVICES=-1"),
    _gpu("environment", "is given no GPU", "ENV NVIDIA_VISIBLE_DEVICES=void"),
    _gpu("environment", "has no compute", "ENV NVIDIA_DRIVER_CAPABILITIES=utility"),
    _gpu("environment", "passes over all machine", "ENV CUDA_FORCE_PTX_JIT=1"),
    _gpu("environment", "is no allocator", "ENV TF_GPU_ALLOCATOR=cudamalloc"),
    _gpu("environment", "of one machine's network", "ENV NCCL_NET=FasTrak"),
    _gpu("environment", "names a file that is not", "ENV NCCL_TOPO_FILE=/etc/topo.xml"),
    _gpu("environment", "names a file that is not", "ENV CUDA_INJECTION64_PATH=/opt/libx.so"),
    _gpu("environment", "what no driver has", "ENV NVIDIA_REQUIRE_CUDA=cuda>=99.0"),
    _gpu("environment", "swallows the line", "ENV TF_CPP_MIN_LOG_LEVEL=3"),
    _gpu("environment", "CUDA folder", "ENV XLA_FLAGS=--xla_gpu_cuda_data_dir=/opt/cuda"),
    _gpu("environment", "the guard does not ask", "ENV TRAINING_ACCELERATOR=none"),
    _gpu("environment", "start hook does not run", "ENV PYTHONPATH=/opt"),
    _gpu("environment", "start hook does not run", 'ENTRYPOINT ["python", "-I", "-m", "trainer"]'),
    _gpu("environment", "misspelt", "ENV TF_FORCE_ALLOW_GPU_GROWTH=true"),
    _gpu("environment", "a single thread", "ENV TF_NUM_INTRAOP_THREADS=1"),
    _gpu("environment", "mount the driver there", "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64"),
    _gpu("environment", "one machine's network", "ENV NCCL_SOCKET_IFNAME=eno1"),
    _env("environment", "there is no such proxy", "ENV HTTPS_PROXY=http://proxy:3128"),
    _env("machine", "is sent in place|send that", "STOPSIGNAL SIGINT"),
    _env("machine", "is a name", "USER nobody"),
    _env("machine", "no HTTPS connection", "ENV SSL_CERT_FILE=/etc/pki/none.pem"),
    _files("no certificates", "machine", "gs:// cannot be read", f"rm {TRUSTED}"),
    _files("an empty bundle", "machine", "is empty", f": > {TRUSTED}"),
    _env("environment", "does not know", "ENV XLA_FLAGS=--xla_gpu_nonsense=1"),
    _env("environment", "does not know", "ENV TF_XLA_FLAGS=--tf_xla_auto_git=2"),
    _env("environment", "which is not in the image", "ENV LD_PRELOAD=/usr/lib/libtcmalloc.so.4"),
    _env("environment", "takes docstrings out", "ENV PYTHONOPTIMIZE=2"),
    _env("machine", "a container that does not pass", "HEALTHCHECK CMD false"),
    _env("environment", "lines reach the log late", "ENV PYTHONUNBUFFERED="),
    _env("contents", "a W&B key", "ENV WANDB_API_KEY=" + "0a1b2c3d4e" * 4),
    _env("permissions", "runs as root", "USER 0"),
    _files(
        "a token in the program",
        *("contents", "a Hugging Face token"),
        "echo login hf_" + "aBcDeFgHiJkLmNoPq" * 2 + " > /opt/a.sh",
    ),
    _files(
        "a login that a later layer deletes",
        *("contents", "a later layer hides it"),
        f"echo DB_PASSWORD={MIXED * 2} > /app/.env\nRUN rm /app/.env",
    ),
    _files("a login", "contents", "a netrc", "echo machine a login b password c > /root/.netrc"),
    _files("a key", "contents", "a private key", f"printf -- '{KEY}\\n{MIXED * 9}' > /app/key.pem"),
    _files(
        "apt's lists",
        "contents",
        "the system's packages",
        "echo x > /var/lib/apt/lists/deb_Packages",
    ),
    _files(
        "a package beyond the lock",
        *("contents", "installed and not locked: evil 1.0"),
        f"mkdir {SITE}/evil-1.0.dist-info && "
        f"printf 'Name: evil\\nVersion: 1.0\\n' > {SITE}/evil-1.0.dist-info/METADATA",
    ),
    _files(
        "a package less", "contents", "locked and not installed", f"rm -r {SITE}/numpy-*.dist-info"
    ),
    _files(
        "code at every start",
        *("contents", "nobody accounts for"),
        f"echo import os > {SITE}/zz_evil.pth",
    ),
    _files("a way to root", "permissions", "another user's rights", "chmod u+s /usr/bin/env"),
    _files(
        "a capability",
        *("permissions", "another user's rights"),
        f'cp /bin/true /usr/local/bin/own && python -c "{CAPABILITY}"',
    ),
    _files("accounts for all", "permissions", "change accounts", "chmod 666 /etc/passwd"),
    _files("programs for all", "permissions", "everybody may write", "chmod o+w /usr/local/bin"),
    _files("its own program", "permissions", "overwrite its program", "chown -R 1000 /app/trainer"),
    _files(
        "a driver's remnant",
        *("driver", "libraries of the driver"),
        "cp /lib/x86_64-linux-gnu/libz.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    ),
    _starts("no such program", "training", "cannot be executed|no such file", '["/app/none"]'),
    _starts("an exit 0 without a step", "training", "exit", PYTHON, "print('done')"),
    _trainer(
        "an error at step 3",
        *("training", r"failed with exit code 1 after step 3: RuntimeError: shapes \(3, 2\)"),
        """
import trainer.loop.inner
train, made = trainer.loop.inner.Trainer.train, []
def fail(*a):
    if len(made) == 3:
        raise RuntimeError("shapes (3, 2) and (4,) do not match")
    made.append(train(*a))
    return made[-1]
trainer.loop.inner.Trainer.train = fail
sys.argv.append("--steps-per-loop=1")
""",
    ),
    _trainer(
        "weights from the network",
        *("training", "needs the network, and has none: urllib.error.URLError"),
        "import urllib.request; urllib.request.urlopen('https://weights.example/densenet.h5')",
    ),
    _trainer(
        "a checkpoint that is ignored",
        *("training", "ignored its checkpoint: killed at step"),
        "import trainer.job.checkpoints\n"
        "trainer.job.checkpoints.Checkpoints.steps = lambda self: []",
    ),
    _trainer(
        "no model",
        *("outputs", "wrote no SavedModel"),
        "import trainer.model.results\ntrainer.model.results.export = lambda *a: None",
    ),
    Breakage("outputs of root", "outputs", "belongs to uid 0", "USER 0"),
    _starts("a failure before its code", "starts", "ends before", PYTHON, "raise SystemExit(3)"),
    _starts(
        "an attribute of an older NumPy",
        *("starts", r"fails while its modules load: AttributeError.*\(broken.py:2\)"),
        *(PYTHON, "import numpy\nRATE = numpy.float(0.1)"),
    ),
    _library(
        "no cuDNN", "libcudnn.so.9 is not where", lambda i: i.library("libcudnn.so.9").unlink()
    ),
    _library("a library where nobody looks", "libcusolver.so.11 is not where", _elsewhere),
    _library(
        "a library by the cache alone",
        "ld.so.cache alone",
        _elsewhere,
        "RUN ldconfig /opt/elsewhere",
    ),
    _library("half an NVRTC", "does not compile a kernel", _half_nvrtc),
    _library("an older cuDNN first", "the lock says", _old_first, "ENV LD_LIBRARY_PATH=/usr/lib"),
    _library(
        "a TensorFlow for the CPU",
        "built without CUDA",
        lambda image: image.build_info(is_cuda_build=False),
    ),
)
