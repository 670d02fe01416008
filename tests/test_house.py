"""The shape of the code: what lies where, how long it is, and that a name stands for one thing."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.core.project import find_root

ROOT = find_root(Path(__file__).parent)
BUILDER, TRAINER = ROOT / "builder", ROOT / "trainer"
MODULE_LINES, FUNCTION_LINES, TOP_MODULES = 500, 60, 3

RUNS_ALONE = BUILDER / "devicecode" / "pruning" / "errors.py"
"""The pruning program runs alone inside an image, so it cannot import builder.core.errors. It has
its own InputError and CheckFailed. No other class name stands twice."""


def modules(folder: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """Every Python file below a folder, with its text and its syntax tree."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, text, ast.parse(text)


def long_modules(folder: Path) -> list[str]:
    """Modules with too many lines."""
    counted = ((path, len(text.splitlines())) for path, text, _ in modules(folder))
    return [f"{path}: {lines} lines" for path, lines in counted if lines > MODULE_LINES]


def long_functions(folder: Path) -> list[str]:
    """Functions with too many lines, decorators left out."""
    found = []
    for path, _, tree in modules(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return found


def repeated_classes(folder: Path) -> list[str]:
    """Names of classes that stand for more than one class."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, _, tree in modules(folder):
        if path == RUNS_ALONE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]


def hand_made_steps(folder: Path) -> list[str]:
    """Places that hand a StepStarted to a callback, which `step` and `begin` of core/events.py do.

    A generator that turns the progress of another program into events yields them; it calls nobody.
    """
    found = []
    for path, _, tree in modules(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and path != BUILDER / "core" / "events.py":
                given = [ast.unparse(one.func) for one in node.args if isinstance(one, ast.Call)]
                if any(name.split(".")[-1] == "StepStarted" for name in given):
                    found.append(f"{path}:{node.lineno}")
    return found


ONLY_LINUX = {
    "memfd_create", "prctl", "uname", "sched_getaffinity", "pidfd_open", "eventfd", "splice",
    "unshare", "setns",
}  # fmt: skip
ON_LINUX_ALONE = {
    BUILDER / "core/system.py": "says what stands in for these calls elsewhere",
    BUILDER / "engine/private": "the private engine is for Linux alone",
    BUILDER / "devicecode/pruning/announce.py": "runs inside images",
    BUILDER / "prove/probes": "runs inside images",
    BUILDER / "tensorflow/probes": "runs inside images",
    BUILDER / "jobs/places/local/usage.py": "the GPUs of a machine with NVIDIA's driver for Linux",
}


def linux_calls(folder: Path) -> list[str]:
    """Calls that only Linux has, and paths of its kernel, where the factory runs on any host."""
    found = []
    for path, _, tree in modules(folder):
        if any(one in ON_LINUX_ALONE for one in (path, *path.parents)):
            continue
        for node in ast.walk(tree):
            called = isinstance(node, ast.Attribute) and node.attr in ONLY_LINUX
            text = node.value if isinstance(node, ast.Constant) else ""
            if called or (isinstance(text, str) and text.startswith(("/proc/", "/sys/"))):
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_the_factory_calls_nothing_that_only_linux_has() -> None:
    assert linux_calls(BUILDER) == []
    assert [str(path) for path in ON_LINUX_ALONE if not path.exists()] == []


WRITERS = {
    "core/files.py": "the mechanism",
    "core/system.py": "a temporary folder",
    "cli/__init__.py": "the standard streams",
    "devicecode/pruning/prune.py": "runs alone inside an image",
    "engine/private/daemon.py": "a log that grows",
    "engine/private/memory.py": "a setting of the kernel",
    "engine/private/network.py": "a setting of the kernel",
    "jobs/lease.py": "a file that has to be new",
    "jobs/package.py": "a folder of its own, which is renamed as a whole",
    "jobs/places/local/run.py": "logs that grow",
    "jobs/tensorboard.py": "a log that grows",
    "lock/python.py": "a temporary folder",
    "pipeline/plan.py": "a temporary folder",
    "prove/wheels.py": "a temporary folder",
    "bases/download.py": "a download that goes on where it broke off",
    "bases/bytecode.py": "a temporary folder",
    "bases/osroot.py": "a temporary folder",
    "bases/wheel_making.py": "a temporary folder",
}
"""The modules that may write a file without core/files.py, which writes it whole, each with why."""

ASKERS = {
    "core/web.py": "the mechanism",
    "cloudbuild/runner/proxy.py": "an engine's socket, which is handed to a build's steps",
    "core/googleapi.py": "Google's own client, and its errors",
    "cloudbuild/submission/logs.py": "errors of Google's client",
    "devicecode/registry.py": "runs without the factory; it bounds what it reads itself",
    "engine/containers.py": "the engine's socket",
    "engine/docker.py": "errors of docker's client",
    "engine/private/daemon.py": "the engine's socket",
    "engine/private/network.py": "whether an address is free",
    "jobs/places/kubernetes/api.py": "errors of web.py",
    "jobs/places/vertex/place.py": "errors of Google's client",
    "pipeline/push.py": "errors of docker's client",
    "registry/refusals.py": "errors of web.py",
}
"""The modules that may open an address without core/web.py, which bounds what is answered."""

DECODERS = {
    "registry/decoding.py": "the mechanism",
    "registry/credentials.py": "docker's configuration, which is the user's file",
}
"""The modules of builder/registry/ that may read JSON without decoding.py."""

_CLIENTS = {"http.client", "requests", "socket", "urllib.request", "urllib3"}


def writing(folder: Path) -> list[str]:
    """Calls that write or append to a file."""
    found = []
    for path, _, tree in modules(folder):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).split(".")[-1]
            modes = [one.value for one in (*node.args, *(k.value for k in node.keywords))
                     if isinstance(one, ast.Constant) and isinstance(one.value, str)]  # fmt: skip
            in_memory = any(one.arg == "fileobj" for one in node.keywords)
            opens = (
                name == "open"
                and not in_memory
                and any(re.fullmatch("[waxr]b?[+]?b?", one) for one in modes)
            )
            if name in ("write_text", "write_bytes") or (opens and not {"r", "rb"} & set(modes)):
                found.append(f"{path}:{node.lineno}")
    return found


def asking(folder: Path) -> list[str]:
    """Imports of a client of HTTP, but for its errors and its types."""
    found = []
    for path, _, tree in modules(folder):
        ifs = [one for one in ast.walk(tree) if isinstance(one, ast.If)]
        types = [one for one in ifs if ast.unparse(one.test) == "TYPE_CHECKING"]
        typed = [node for one in types for node in ast.walk(one)]
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if node not in typed and _CLIENTS & set(names):
                found.append(f"{path}:{node.lineno}")
    return found


def decoding(folder: Path) -> list[str]:
    """Calls of json.loads."""
    calls = ((path, node) for path, _, tree in modules(folder) for node in ast.walk(tree))
    return [
        f"{path}:{node.lineno}"
        for path, node in calls
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.loads", "json.load")
    ]


@pytest.mark.parametrize(
    ("finds", "below", "allowed"),
    [
        (writing, BUILDER, WRITERS),
        (asking, BUILDER, ASKERS),
        (decoding, BUILDER / "registry", DECODERS),
    ],
)
def test_no_way_beside_the_mechanisms(
    finds: Callable[[Path], list[str]], below: Path, allowed: dict[str, str]
) -> None:
    found = {line.rpartition(":")[0].removeprefix(f"{BUILDER}/") for line in finds(below)}
    assert found - allowed.keys() == set(), "use the mechanism, or say here why not"
    assert allowed.keys() - found == set(), "these do not need to stand here any more"


@pytest.mark.parametrize("folder", [BUILDER, TRAINER], ids=lambda path: path.name)
@pytest.mark.parametrize("finds", [long_modules, long_functions])
def test_nothing_is_too_long(finds: Callable[[Path], list[str]], folder: Path) -> None:
    assert finds(folder) == []


@pytest.mark.parametrize("finds", [repeated_classes, hand_made_steps])
def test_one_name_one_class_and_one_way_to_report_a_step(
    finds: Callable[[Path], list[str]],
) -> None:
    assert finds(BUILDER) == []


def top() -> tuple[set[str], set[str]]:
    """The folders and the modules at the top of builder/."""
    folders = {path.parent.name for path in BUILDER.glob("*/__init__.py")}
    return folders, {path.stem for path in BUILDER.glob("*.py")} - {"__init__", "__main__"}


def test_the_top_of_builder_holds_folders() -> None:
    assert len(top()[1]) <= TOP_MODULES


def test_the_import_contract_orders_every_folder() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (corridor,) = [
        one for one in settings["contracts"] if one["name"] == "one corridor, one direction"
    ]
    ordered = set(re.findall(r"\bbuilder\.(\w+)", " ".join(corridor["layers"])))
    folders, files = top()
    assert ordered == folders | files


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = [path.parent.relative_to(ROOT).as_posix() for path in TRAINER.glob("*/__init__.py")]
    names += [f"builder/{name}" for name in top()[0]]
    assert [name for name in names if f"| `{name}/`" not in text] == []


@pytest.mark.parametrize(
    ("finds", "text"),
    [
        (long_modules, "x = 1\n" * (MODULE_LINES + 1)),
        (long_functions, "def f():\n" + "    x = 1\n" * FUNCTION_LINES),
        (repeated_classes, "class A: ...\nclass A: ...\n"),
        (hand_made_steps, "on_event(events.StepStarted('a'))\n"),
        (writing, "path.write_text('x')\n"),
        (writing, "path.open('ab')\n"),
        (writing, "open(path, mode='w')\n"),
        (asking, "import urllib.request\n"),
        (asking, "from urllib3 import PoolManager\n"),
        (decoding, "json.loads(data)\n"),
        (linux_calls, "x = os.memfd_create('a')\n"),
        (linux_calls, "x = Path(f'/proc/{1}/stat')\n"),
    ],
)
def test_each_rule_finds_what_breaks_it(
    finds: Callable[[Path], list[str]], text: str, tmp_path: Path
) -> None:
    (tmp_path / "module.py").write_text(text)
    (found,) = finds(tmp_path)
    assert "module.py" in found
    (tmp_path / "module.py").write_text("\n".join(text.splitlines()[:-1]))
    assert finds(tmp_path) == []
