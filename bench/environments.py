"""Damaged environments: `builder` started with variables that nobody should set, but people do.

One case is one command in a process of its own. The command ends with an exit code that blames the
right side, shows no password, and writes nowhere but below its own folder.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 300.0
"""The longest that a command may take, with its attempts to reach what the variables name."""
PASSWORD = "correct-horse-battery"

COMMANDS = (
    ("list",),
    ("list", "--json"),
    ("explain", "cpu"),
    ("check",),
    ("render", "cpu", "--check"),
    ("lock", "cpu", "--check"),
    ("show", "base", "cpu"),
    ("audit", "trainer", "--gpu", "v100"),
    ("job", "render", "digits"),
    ("job", "cost", "digits"),
    ("job", "list", "--local"),
    ("job", "why", "--log", "-"),
    ("cloud", "validate", "cloudbuild.yaml"),
    ("cache",),
    ("doctor",),
    ("engine", "status"),
)
"""Commands that need no network and change nothing."""

VARIABLES = (
    "BUILDER_CLOUD_ENDPOINT", "BUILDER_CLOUD_PROJECT", "BUILDER_ENGINE", "BUILDER_ENGINE_DIR",
    "BUILDER_OUTPUT", "BUILDER_REGISTRY", "CLOUDSDK_CONFIG", "COLUMNS", "DOCKER_CERT_PATH",
    "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "GITHUB_ACTIONS",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "HOME", "HTTPS_PROXY", "HTTP_PROXY",
    "KUBECONFIG", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NETRC", "NO_COLOR", "NO_PROXY", "PATH",
    "PIP_CERT", "PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_TRUSTED_HOST",
    "PYTHONIOENCODING", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "STORAGE_EMULATOR_HOST", "SUDO_GID",
    "SUDO_UID", "TERM", "TMPDIR", "TZ", "UV_CONFIG_FILE", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL",
    "UV_HTTP_TIMEOUT", "UV_INDEX", "UV_INDEX_URL", "UV_INSECURE_HOST", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "all_proxy",
)  # fmt: skip

VALUES = (
    b"", b" ", b"\xff\xfe", b"/nonexistent", b"/nonexistent/a/b", b"/dev/null", b"relative/path",
    b"~", b"..", b"http://", b"http://[::1", b"http://127.0.0.1:1", b"https://127.0.0.1:99999/x",
    b"http://user:%(password)s@127.0.0.1:1/", b"user:%(password)s@127.0.0.1:1",
    b"https://u:%(password)s/w@h:x", b"//u:%(password)s@h", b"tcp://127.0.0.1:1", b"tcp://x:y",
    b"unix://", b"unix:///nonexistent.sock", b"ssh://u:%(password)s@h", b"fd://3", b"-1", b"0",
    b"1e999", b"nan", "٣".encode(), "💥".encode(), b"a\nb", b"\x1b[31mred", b"%(folder)s/file",
    b"%(folder)s/empty", b"%(folder)s/json", b"%(folder)s/locked", b"%(folder)s/long", b"x" * 4000,
    b"docker", b"private", b"localhost:5000/x", b"LOCALHOST:5000/X@y", b"=", b"*", b"C", b"json",
)  # fmt: skip

ENCODINGS = (b"ascii", b"latin-1", b"utf-8:strict", b"utf-16")
"""Others keep Python itself from starting."""

WATCH = """\
import os, sys
_log = os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod",
            "os.chown", "os.truncate", "os.utime")
def _watch(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
    elif event in _CHANGES:
        path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
        if isinstance(path, int):
            return
    else:
        return
    os.write(_log, os.path.abspath(os.fsencode(path)) + b"\\n")
sys.addaudithook(_watch)
"""
"""sitecustomize.py of the process: notes each path that Python opens to write, makes or removes."""


@cache
def project() -> Path:
    """A copy of the project that no case may change. It lasts as long as this process."""
    home = tempfile.TemporaryDirectory(prefix="fuzz-project-", dir="/var/tmp")
    project.home = home  # type: ignore[attr-defined]
    root = Path(home.name)
    for name in ("images", "trainer", "jobs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("builder.toml", "cloudbuild.yaml", "builder.Dockerfile", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    return root


def environments(number: int) -> None:
    """One command with up to six variables of the host replaced."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory(prefix="case-") as name:
        folder = Path(name)
        words, environment = case(chance, folder)
        done = subprocess.run(
            [sys.executable, "-m", "builder", *words],
            cwd=project(), env=environment, capture_output=True, timeout=SECONDS,
            input=b"OOM when allocating tensor\n", check=False,
        )  # fmt: skip
        (folder / "locked").chmod(0o700)
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        told = f"{' '.join(words)} with {_shown(environment)}: exit code {done.returncode}\n{said}"
        assert done.returncode in (0, 2, 3, 4), told
        assert "Traceback" not in said, told
        assert PASSWORD not in said, told
        outside = [path for path in _written(folder) if not _allowed(path, folder)]
        assert not outside, f"{told}\nwrote {outside[0]}"


def case(chance: random.Random, folder: Path) -> tuple[tuple[str, ...], dict[bytes, bytes]]:
    """A command and its environment, with what the values name in `folder`."""
    (folder / "file").write_text("a file, not a folder\n")
    (folder / "json").write_text('{"auths": ["a list"], "type": 7, "clusters": {"a": [1]}}')
    for kind in ("empty", "home", "locked"):
        (folder / kind).mkdir()
    (folder / "locked").chmod(stat.S_IRUSR)
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": f"{folder}/home",
        "TMPDIR": str(folder),
        "BUILDER_ENGINE_DIR": f"{folder}/engine",
        "PYTHONPATH": f"{folder}/watch:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "WATCH_LOG": f"{folder}/written",
    }
    found = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    for name in chance.sample(VARIABLES, chance.randint(1, 6)):
        value = chance.choice(ENCODINGS if name == "PYTHONIOENCODING" else VALUES)
        for word, meaning in ((b"password", PASSWORD), (b"folder", str(folder))):
            value = value.replace(b"%(" + word + b")s", os.fsencode(meaning))
        found[os.fsencode(name)] = value
    return chance.choice(COMMANDS), found


def _written(folder: Path) -> set[str]:
    log = folder / "written"
    return set(log.read_text("utf-8", "replace").splitlines()) if log.exists() else set()


def _allowed(path: str, folder: Path) -> bool:
    """Whether a command may write there: below its own folder, and where a variable leads it."""
    return path.startswith((f"{folder}/", "/dev/", "/proc/")) or path == str(folder)


def _shown(environment: dict[bytes, bytes]) -> str:
    plain = {b"WATCH_LOG", b"PYTHONPATH", b"PYTHONDONTWRITEBYTECODE"}
    return " ".join(
        f"{os.fsdecode(name)}={os.fsdecode(value)[:60]!r}"
        for name, value in environment.items()
        if name not in plain
    )
