"""Does something stand in front of Python's modules, a framework or the accelerator?

Python looks into the folder of its program first, then into PYTHONPATH (docs.python.org, "The
initialization of the sys.path module search path"): a random.py there is imported by every library.
And a program, or a script around it, may hide the accelerator itself. Its text is read, not run: a
line below an `if` or an `except` may never count.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from builder.prove import commands
from builder.prove.commands import Command
from builder.prove.image import Image, listed
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_NAMES: Final = """
argparse ast asyncio base64 bisect bz2 calendar collections concurrent contextlib contextvars copy
copyreg csv ctypes dataclasses datetime decimal difflib dis email enum fnmatch fractions functools
getpass glob gzip hashlib heapq hmac html http importlib inspect json keyword linecache locale
logging lzma math mimetypes mmap multiprocessing numbers opcode operator optparse pathlib pickle
pkgutil platform pprint queue random re reprlib secrets select selectors shlex shutil signal socket
ssl statistics string struct subprocess sysconfig tarfile tempfile textwrap threading timeit token
tokenize traceback types typing unicodedata unittest urllib uuid warnings weakref xml zipfile zlib
"""
_IMPORTED: Final = frozenset(_NAMES.split())
"""Modules of Python that TensorFlow, PyTorch, JAX or NumPy import."""
_LOADED: Final = frozenset({"abc", "codecs", "genericpath", "io", "ntpath", "os", "posixpath"}) | {
    *("encodings", "site", "stat", *sys.builtin_module_names)
}
"""Modules that are loaded before the program's folder is looked into."""
_ARRAYS: Final = "numpy"
_PACKAGES: Final = re.compile(r"/(site|dist)-packages$")
_STANDARD: Final = re.compile(r"/lib(64)?/python3[^/]*(/lib-dynload)?$")
_SYSTEM: Final = re.compile(r"^/(usr/lib|etc)/python3[^/]*/")
_CUSTOM: Final = ("sitecustomize.py", "usercustomize.py")
_PROFILE: Final = re.compile(
    r"^/etc/(profile$|profile\.d/|bash\.bashrc$)|/\.(bashrc|bash_profile|profile)$"
)

_NONE: Final = r"([\"']?)(-1|NoDevFiles|none|)\1"
_HIDES: Final = (
    re.compile(rf"(?<![\w$])CUDA_VISIBLE_DEVICES={_NONE}(?=[\s;&]|$)"),
    re.compile(r"(?<![\w$])JAX_PLATFORM(?:S|_NAME)=[\"']?cpu[\"']?(?=[\s;&]|$)"),
)
"""What a shell says."""
_SETS: Final = r"[\"']\s*\]?\s*[=,]\s*"
_TEXT: Final = (
    re.compile(rf"CUDA_VISIBLE_DEVICES{_SETS}[\"'](-1|)[\"']"),
    re.compile(rf"(JAX_PLATFORM(S|_NAME)|jax_platform(s|_name)){_SETS}[\"']cpu[\"']"),
    re.compile(
        r"set_visible_devices\(\s*(devices\s*=\s*)?\[\s*\]\s*,\s*(device_type\s*=\s*)?[\"']GPU"
    ),
)
"""What a program of Python says."""
_PERHAPS: Final = re.compile(r"\s*(if|elif|else|except|case)\b")


def run(image: Image) -> Answer:
    started = list(commands.started(image))
    folders = _folders(image, started)
    defects = [*_modules(image, folders), *_second(image, folders)]
    if not image.is_ours:  # the factory's own start hook runs the one that it hides
        defects += _customized(image)
    if image.kind != "cpu":
        defects += [*_scripts(image, started), *_programs(image, folders)]
    return defects, {"note": f"the program's folder: {folders[0]}" if folders else ""}


def _folders(image: Image, started: Sequence[Command]) -> list[str]:
    """Return the folders that come before Python's own: the program's, and those of PYTHONPATH."""
    found, path = list[str](), image.environment.get("PYTHONPATH", "")
    for command in started:
        kind, at = command.target
        if {"-I", "-P"} & set(command.words[:at]):
            continue
        if kind == "file" and (command.is_python or command.word(at).endswith(".py")):
            file = image.tree.resolve(posixpath.join(command.folder, command.word(at)))
            found.append(posixpath.dirname(file or ""))
        elif command.is_python:
            found.append(command.folder)
    found += (
        posixpath.join(str(image.config.get("WorkingDir") or "/"), p) for p in path.split(":") if p
    )
    return list(dict.fromkeys(filter(None, (image.tree.resolve(each) for each in found if each))))


def _beside(image: Image, folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of each module and package in a folder."""
    start = f"{folder.rstrip('/')}/"
    for path in image.tree.files:
        if path.startswith(start):
            name, _, rest = path[len(start) :].partition("/")
            if not rest and name.endswith(".py"):
                yield name.removesuffix(".py"), path
            elif rest == "__init__.py":
                yield name, path


def _modules(image: Image, folders: list[str]) -> Iterator[Defect]:
    """Yield the modules of Python, and of frameworks, that others of their name hide."""
    known = {*(each.name for each in image.frameworks), _ARRAYS}
    for folder in folders:
        if _PACKAGES.search(folder) or _STANDARD.search(folder):
            continue
        rare = []
        for name, path in _beside(image, folder):
            if name in known and path.endswith(f"/{name}.py"):
                yield Defect(
                    f"{path} is imported for {name}: the framework of that name is hidden",
                    "give the file another name",
                )
            elif name in _IMPORTED - _LOADED:
                yield Defect(
                    f"{path} is imported for Python's own {name}, by every library that needs it",
                    "give it another name, or move it into a package",
                )
            elif name in sys.stdlib_module_names - _LOADED:
                rare.append(path)
        if rare:
            yield Finding(f"{listed(rare)}: named as modules of Python's own", "rename them")


def _second(image: Image, folders: list[str]) -> Iterator[Defect]:
    """Yield the packages of frameworks that lie before those that were installed for Python."""
    known = {*(each.name for each in image.frameworks), _ARRAYS}
    installed = [folder for folder in image.tree.folders if _PACKAGES.search(folder)]
    for folder in folders:
        for name in sorted(known):
            first = f"{folder.rstrip('/')}/{name}/__init__.py"
            paths = (f"{each}/{name}/__init__.py" for each in installed if each != folder)
            other = next((path for path in paths if path in image.tree.files), "")
            if first in image.tree.files and other:
                yield (Finding if _PACKAGES.search(folder) or _dist(image, folder) else Defect)(
                    f"{posixpath.dirname(first)} is imported, and not {posixpath.dirname(other)}",
                    "take one of them out, or its folder out of PYTHONPATH",
                )


def _dist(image: Image, folder: str) -> bool:
    """Tell whether a folder is one that packages were installed into (pip install --target)."""
    return any(path.startswith(folder) and ".dist-info/" in path for path in image.tree.records)


def _customized(image: Image) -> Iterator[Defect]:
    """Yield what every Python runs at its start."""
    for name in _CUSTOM:
        for path in image.tree.named(name):
            if not _SYSTEM.match(path) and not image.tree.files[path].link:
                yield Finding(
                    f"{path} runs at every start of Python",
                    "take it out, or let the program import it",
                )


# --- the accelerator ------------------------------------------------------------------------------


def _scripts(image: Image, started: Sequence[Command]) -> Iterator[Defect]:
    """Yield where a shell hides the accelerator: in what the image starts, or in a profile."""
    search = ":".join(image.search_path)
    for command in started[:1]:
        if match := _shell(" ".join(command.words)):
            yield Defect(
                f"the image's command says {match}: it hides the accelerator", "take it out"
            )
    files = {image.tree.program(word, search, c.folder) for c in started for word in c.words}
    login = any(
        command.is_shell and re.match(r"-\w*l", "".join(command.words[1:2])) for command in started
    )
    for path, text in image.tree.texts.items():
        is_profile = bool(_PROFILE.search(path))
        if not (path in files or is_profile) or path.endswith(".py"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            match = "" if line.lstrip().startswith("#") else _shell(line)
            if match:
                is_run = path in files or (login and path.startswith("/etc/profile"))
                surely = is_run and line[:1].strip()
                yield (Defect if surely else Finding)(
                    f"{path}:{number} says {match}: it hides the accelerator", "take the line out"
                )


def _shell(text: str) -> str:
    return next((m[0] for m in (pattern.search(text) for pattern in _HIDES) if m), "")


def _programs(image: Image, folders: list[str]) -> Iterator[Defect]:
    """Yield where a program's own text hides the accelerator. TensorFlow beside another framework
    may be meant to leave it alone."""
    feeds = len(image.frameworks) > 1
    places = tuple(f"{folder.rstrip('/')}/" for folder in folders if folder != "/")
    for path, text in image.tree.texts.items():
        if not path.endswith(_CUSTOM) and not (path.endswith(".py") and path.startswith(places)):
            continue
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            match = next((m for m in (pattern.search(line) for pattern in _TEXT) if m), None)
            if not match or line.lstrip().startswith("#") or (feeds and "set_visible" in match[0]):
                continue
            if not (image.is_ours and _is_conditional(lines, number)):
                yield Finding(
                    f"{path}:{number} hides the accelerator: {line.strip()[:120]}",
                    "take the line out; the machine says which devices there are",
                )


def _is_conditional(lines: list[str], number: int) -> bool:
    """Tell whether a line stands below an `if`; of the others, the heads of its blocks are kept."""
    depth = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    for line in reversed(lines[: number - 1]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            if _PERHAPS.match(line):
                return True
            depth = indent
    return False


CHECK = Check.of("shadows", 1, run)
