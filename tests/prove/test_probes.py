"""The probes of contents, imports and devices, on images described by a few files."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.frameworks.tensorflow.probes import outputs
from builder.prove.checks import contents as contents_check
from builder.prove.probes import contents, devices, imports
from builder.prove.session import program_files

PROBES = sorted(
    path
    for folder in (Path(contents.__file__).parent, Path(outputs.__file__).parent)
    for path in folder.rglob("*.py")
)


# --- contents ------------------------------------------------------------------------------------

KEY = "-----BEGIN " + "PRIVATE KEY-----"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" * 2
MIXED = "a1B2c3D4e"


class Root:
    """A folder that stands for an image's root, with packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "opt/venv/lib/python3.11/site-packages"
        self.site.mkdir(parents=True)

    def write(self, path: str, text: str = "x") -> Path:
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def package(self, name: str, version: str, files: Mapping[str, str]) -> None:
        record = ""
        for path, text in files.items():
            self.write(f"{self.site.relative_to(self.folder)}/{path}", text)
            record += f"{path},sha256=x,{len(text)}\n"
        info = f"{self.site.relative_to(self.folder)}/{name}-{version}.dist-info"
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        self.write(f"{info}/RECORD", record)

    def probe(self, **request: object) -> tuple[list[str], dict[str, Any]]:
        given = {
            "user": "1000", "python": "", "packages": {}, "strict": True, "skip": ["/smoke"],
            "debian": ["a-package"], "program": "/app", "own": ["*.dist-info/*"],
            "environment": {"PATH": "/opt/venv/bin:/usr/local/bin/:/bin"},
        }  # fmt: skip
        answer = contents.probe({**given, **request}, str(self.folder), [str(self.site)])
        assert all(problem["fix"] for problem in answer["problems"])
        return [problem["message"] for problem in answer["problems"]], answer["seen"]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


SITE = "/opt/venv/lib/python3.11/site-packages"


def accounted(root: Root) -> Root:
    """An image whose files are those of a locked Debian and a locked Python package."""
    for name in ("bin", "lib"):
        (root.folder / "usr" / name).mkdir(parents=True)
        (root.folder / name).symlink_to(f"usr/{name}")
    listed = ["/bin/tool", "/usr/lib/x86_64-linux-gnu/libtool.so.1", "/usr/lib/python3.11/os.py"]
    for path in (*listed, "/usr/lib/python3.11/__pycache__/os.cpython-311.pyc", "/etc/passwd"):
        root.write(path)
    root.write("/var/lib/dpkg/info/a-package:amd64.list", "\n".join(["/.", "/bin", *listed]))
    (root.folder / "etc/alternatives").mkdir()
    (root.folder / "etc/alternatives/also").symlink_to("/usr/bin/tool")
    (root.folder / "usr/bin/also").symlink_to("/etc/alternatives/also")
    root.package("a", "1", {"a/__init__.py": "", "a.pth": "import a\n", "b.pth": "/srv\n"})
    root.write(f"{SITE}/a/__pycache__/__init__.cpython-311.pyc")
    root.write("/app/task.py")
    return root


def test_every_file_is_accounted_for(root: Root) -> None:
    problems, seen = accounted(root).probe(packages={"A": "1"})
    assert problems == [] and seen["unaccounted"] == 0
    assert seen["code_at_start"] == [f"{SITE}/a.pth"]


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/zz_evil.pth",
        f"{SITE}/a/__pycache__/other.cpython-311.pyc",
        "/home/trainer/.local/lib/python3.11/site-packages/usercustomize.py",
        "/usr/lib/python3.11/sitecustomize.py",
        "/srv/modules/sitecustomize.py",
        "/usr/bin/python3",
        "/usr/local/bin/ls",
        "/usr/lib/x86_64-linux-gnu/libc.so.7",
        "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libtool.so.1",
        "/etc/ld.so.preload",
        "/etc/ld.so.conf.d/evil.conf",
        "/opt/libraries/libtool.so.1",
    ],
)
@pytest.mark.parametrize(
    "link", ["", "/opt/data/weights.bin", "/home/data/weights.bin", "/var/lib/made.bin"]
)
def test_a_file_that_nobody_accounts_for_is_refused_where_it_would_be_run(
    root: Root, path: str, link: str
) -> None:
    accounted(root).write("/opt/data/weights.bin")
    root.write("/var/lib/made.bin")
    (root.folder / "home").mkdir()
    (root.folder / "home/data").symlink_to("/opt/data")
    file = root.write(path)
    if link:
        file.unlink()
        file.symlink_to(link)
    environment = {
        "PATH": "/usr/local/bin:/bin",
        "PYTHONPATH": "/srv/modules",
        "LD_LIBRARY_PATH": "/opt/libraries",
    }
    request = {"packages": {"a": "1"}, "environment": environment, "python": ""}
    (problem,), seen = root.probe(**request)
    assert problem.startswith(f"nobody accounts for {path}: no locked package brings it")
    assert seen["unaccounted_files"] == sorted([path, "/opt/data/weights.bin"])
    assert root.probe(**request, strict=False)[0] == []  # a published base is its publisher's


def test_a_package_that_is_not_locked_accounts_for_nothing(root: Root) -> None:
    accounted(root).write("/var/lib/dpkg/info/other.list", "/usr/bin/other")
    root.write("/usr/bin/other")
    root.package("b", "1", {"b.py": ""})
    problems, _ = root.probe(packages={"a": "1"})
    assert [
        problem for problem in problems if f"{SITE}/b.py" in problem and "/usr/bin/o" in problem
    ]


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("/root/.netrc", "machine a login b password c", "a netrc with logins"),
        ("/app/.git/HEAD", "ref: refs/heads/main", "a Git repository with its history"),
        ("/home/trainer/.ssh/id_ed25519", "x", "an SSH key"),
        ("/app/key.pem", f"{KEY}\n{BODY}\n", "a private key"),
        ("/app/sa.json", f'{{"private_key": "{KEY}\\n{BODY}"}}', "a private key"),
        ("/app/adc.json", '{"refresh_' + 'token": "1//0abcdefghijkl"}', "Google Cloud credentials"),
        ("/etc/pip.conf", "index-url = https://me:s3cret@index.example/", "an address with a pass"),
        ("/root/.docker/config.json", '{"auths":{"a":{"auth":"bWU6czNjcmV0"}}}', "a login for a"),
        ("/app/task.py", "TOKEN = 'ghp_" + MIXED * 4 + "'", "a token (github-pat)"),
        ("/app/hf.py", "login('hf_" + "aBcDeFgHiJkLmNoPq" * 2 + "')", "a Hugging Face token"),
        ("/app/notes.txt", "sk-" + "proj-" + MIXED * 4 + "T3Blb" + "kFJ" + MIXED * 3, "an OpenAI"),
        ("/app/ci.yml", "token: glpat-" + MIXED * 2 + "Zz", "a token (gitlab-pat)"),
        ("/app/run.sh", "export AWS_ACCESS_KEY_ID=AKIA" + "Q3EGRT5TW7Z2XK4M", "an AWS access key"),
        ("/app/w.sh", "export WANDB_API_KEY=" + "0a1b2c3d4e" * 4, "a W&B key"),
        ("/root/.kaggle/kaggle.json", "{}", "a Kaggle login"),
        ("/app/.env", "DB_PASSWORD=" + MIXED * 2, "a login in a variable"),
    ],
)
def test_a_secret_is_found_and_named(root: Root, path: str, text: str, kind: str) -> None:
    root.write(path, text)
    messages, _ = root.probe()
    assert len(messages) == 1
    assert messages[0].startswith(f"the image holds {kind}")
    assert messages[0].endswith(path.replace("/HEAD", ""))


def test_what_only_looks_like_a_secret_is_let_through(root: Root) -> None:
    root.write("/usr/lib/pem.py", f'HEADER = "{KEY}"  # what a key begins with')
    root.write("/usr/share/doc/curl.txt", "curl https://user:password@host/")
    root.write("/etc/apt/apt.conf.d/proxy.conf", "Acquire::http::Proxy 'http://proxy:3128';")
    root.write("/app/README.md", "export HF_TOKEN=hf_xxxxxxxx; GH_TOKEN=ghp_" + "x" * 36)
    root.write("/app/.env", "TOKENIZERS_PARALLELISM=false\nAPI_TOKEN=\nX_PASSWORD=" + "x" * 20)
    root.write("/home/trainer/.cache/uv/sdists/.git", "")  # uv's, so that git stays out of it
    root.write("/app/submodule/.git", "gitdir: ../../.git/modules/submodule")
    root.write("/smoke/records/id_rsa", "not in the image: mounted")
    root.package("tornado", "6.5", {"tornado/test/test.key": f"{KEY}\n{BODY}\n"})
    assert root.probe()[0] == []


def test_a_packages_file_counts_where_it_was_changed_and_a_hard_link_once(root: Root) -> None:
    root.package("tornado", "6.5", {"tornado/options.py": "x = 1"})
    assert root.probe()[0] == []
    file = root.write(f"{root.site.relative_to(root.folder)}/tornado/options.py", f"{KEY}\n{BODY}")
    messages, seen = root.probe()
    assert messages[0].startswith("the image holds a private key")
    (root.folder / "again").hardlink_to(file)
    assert root.probe()[1]["bytes"] == seen["bytes"]


def test_caches_are_wrong_in_an_image_of_our_own(root: Root) -> None:
    root.write("/var/lib/apt/lists/deb_Packages", "x" * 1000)
    root.write("/home/trainer/.cache/uv/wheel", "x" * 500)
    messages, seen = root.probe()
    assert messages == [
        "a package manager's cache (500 bytes) was left in the image",
        "apt's package lists (1,000 bytes) was left in the image",
    ]
    assert root.probe(strict=False) == ([], seen)


def test_packages_are_what_the_locks_say(root: Root) -> None:
    root.package("tensorflow_cpu", "2.21.0", {"tensorflow/a.so": "x" * 5000})
    root.package("numpy", "2.4.6", {"numpy/a.py": "x" * 100})
    root.package("stray", "1.0", {})
    locked = {"tensorflow-cpu": "2.21.0", "numpy": "2.4.5", "keras": "3.15.1"}
    messages, seen = root.probe(packages=locked)
    assert messages == [
        "keras 3.15.1 is locked and not installed",
        "numpy is 2.4.6 in the image, the lock says 2.4.5",
        "installed and not locked: stray 1.0",
    ]
    assert seen["packages"] == {"numpy": "2.4.6", "stray": "1.0", "tensorflow-cpu": "2.21.0"}
    largest = seen["largest_packages"][0]
    assert (largest["name"], largest["bytes"]) == ("tensorflow-cpu", 5000)
    assert root.probe(packages=locked, strict=False)[0] == messages[:2]


def test_the_user_and_the_python_are_those_asked_for(root: Root) -> None:
    for user in ("", "0", "root", "0:0"):
        assert root.probe(user=user)[0] == [
            "the image runs as root: its outputs would belong to root"
        ]
    assert root.probe(user="nosuchuser")[0] == [
        "the image's USER 'nosuchuser' is not in its /etc/passwd"
    ]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert root.probe(python=version)[0] == []
    assert root.probe(python="3.1")[0][0].endswith("image.yaml says 3.1")


# --- imports --------------------------------------------------------------------------------------


def test_the_probe_names_the_line_of_an_import_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import os, json\nimport helper\nfrom package.inside import x\n"
        "try:\n    import not_there_but_guarded\nexcept ImportError:\n    pass\n"
        "def late():\n    import not_there_at_all.sub\n"
        "from . import relative\n"
    )
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inside.py").write_text("import pytest\nfrom sibling import y\n")
    (tmp_path / "package/sibling.py").touch()
    answer = imports.examine(tmp_path)
    assert answer["problems"] == [
        {
            "message": "main.py:9: import not_there_at_all.sub: no module named not_there_at_all",
            "fix": "add the package that brings not_there_at_all to requirements.txt",
        }
    ]
    assert answer["seen"] == {"modules": ["pytest"]}


def test_the_probe_names_a_syntax_error_and_a_library_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, library = tmp_path / "app", tmp_path / "site"
    folder.mkdir()
    library.mkdir()
    (library / "half_a_library.py").write_text("raise OSError('libx.so.1: cannot open')\n")
    monkeypatch.syspath_prepend(library)
    (folder / "a.py").write_text("def f(:\n")
    (folder / "b.py").write_text("import half_a_library\n")
    messages = [problem["message"] for problem in imports.examine(folder)["problems"]]  # type: ignore[attr-defined]
    assert messages[0].startswith("a.py:1: ")
    assert messages[1] == "b.py:1: import half_a_library: OSError: libx.so.1: cannot open"


def test_what_another_check_proves_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("raise OSError('it was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "a.py").write_text("import slow_to_import\nimport not_there_at_all\n")
    answer = imports.examine(folder, ["slow_to_import", "not_there_at_all"])
    messages = [problem["message"] for problem in answer["problems"]]  # type: ignore[attr-defined]
    assert messages == ["a.py:2: import not_there_at_all: no module named not_there_at_all"]


# --- the others ----------------------------------------------------------------------------------


class Driver:
    """libcuda's functions, for a machine with a V100 and a T4."""

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = [b"Tesla V100", b"Tesla T4"][device.value]
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 7, 76: [0, 5][device.value]}[attribute]
        return 0


def test_gpus_are_told_apart_by_compute_capability() -> None:
    assert devices.devices(Driver()) == [
        {"index": 0, "name": "Tesla V100", "compute_capability": "7.0"},
        {"index": 1, "name": "Tesla T4", "compute_capability": "7.5"},
    ]


def test_no_driver_is_no_gpu() -> None:
    assert devices.main() == {"problems": [], "seen": {"devices": []}}


def test_probes_run_on_an_old_python_with_its_stdlib_alone() -> None:
    for path in PROBES:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        imported = {
            (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]  # type: ignore[union-attr]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0)
            for alias in node.names
        }
        beside = {"builder", "confidential", "accounts"} if path.name == "contents.py" else set()
        assert imported <= sys.stdlib_module_names | beside, path


def test_what_a_probe_imports_is_sent_with_it(tmp_path: Path) -> None:
    """Run as in an image: the files alone, and a Python that has no factory."""
    files = program_files(contents_check.PROBE)
    for name in contents_check.IMPORTS:
        files |= program_files(name)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ask = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import contents as probe; "
    ask += "print(probe.confidential.__name__, probe.confidential.secret('/x/.netrc', b''))"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ask], capture_output=True, text=True, check=True
    )
    assert run.stdout == "confidential a netrc with logins\n"
