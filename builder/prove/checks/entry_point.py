"""Would the image start? Is each program there that ENTRYPOINT and CMD lead to, with the
interpreter of its first line and the file or module that Python runs, and may its user run them?"""

from __future__ import annotations

import posixpath
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Final

from builder.core import confidential
from builder.prove import commands
from builder.prove.commands import EXECUTE, READ, Account, Command
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_SCRIPT: Final = re.compile(r"\.(sh|bash|py)$")
_FIX: Final = "correct ENTRYPOINT or CMD, or install the program"
_INSTALLS: Final = re.compile(r"(^|/)pip3?$")


def run(image: Image) -> Answer:
    """Follow what the image starts. Raises NotThereError where no command is named."""
    started = list(commands.started(image))
    if not started:
        raise NotThereError("the image names no command: whoever starts it has to")
    who = commands.account(image)
    defects: list[Defect] = []
    if who is None and (image.tree.resolve("/etc/passwd") in (None, "/etc/passwd")):
        user = str(image.config.get("User")).partition(":")[0]
        message = f"the image has no account {user} in /etc/passwd: no container of it starts"
        defects.append(Defect(message, "useradd it, or write the number: USER 1000:1000"))
    for command in started:
        defects += _of_command(image, command, who)
    note = shlex.join(started[0].words)[:200]
    return list(dict.fromkeys(defects)), {"note": note}


def _of_command(image: Image, command: Command, who: Account | None) -> Iterator[Defect]:
    search = ":".join(image.search_path)
    word = command.word(0)
    if not word:
        return
    program = image.tree.program(word, search, command.folder)
    if word.startswith(("[", "(")) or word.endswith(","):
        yield Defect(
            f"a shell is given {' '.join(command.words)[:80]}: Docker takes a list for a shell's "
            "line that is no JSON, as where a comma is missing",
            'write the list with double quotes and commas: CMD ["python", "train.py"]',
        )
    elif program is None:
        where = "" if "/" in word else f" in PATH ({search})"
        where += _near(image, word)
        yield Defect(f"the image starts {word}, which is not there{where}", _FIX)
    else:
        yield from _executable(image, command, program, who)
        yield from _first_line(image, command, program)
        yield from _target(image, command, who)
        yield from _installs(image, command)


def _executable(
    image: Image, command: Command, program: str, who: Account | None
) -> Iterator[Defect]:
    entry = image.tree.files[program]
    if not entry.mode & 0o111:
        yield Defect(f"{program} may not be executed", f"chmod +x {program}")
    elif who:
        written = command.word(0)
        places = [command.folder] if "/" in written else list(image.search_path)
        paths = (posixpath.join(place, written) for place in places)
        path = next((path for path in paths if image.tree.resolve(path) == program), program)
        yield from _access(image, path, who, EXECUTE)


def _access(image: Image, path: str, who: Account, right: int) -> Iterator[Defect]:
    """Yield what keeps the image's user from a file."""
    entry = image.tree.files.get(image.tree.resolve(path) or "")
    folder = commands.barred(image, who, path)
    if folder:
        yield Defect(
            f"user {who.uid} may not enter {folder}, on the way to {path}",
            f"install it elsewhere (/opt, not /root), or chmod o+x {folder}",
        )
    elif entry and not who.may(entry, right):
        what, sign = ("read", "r") if right == READ else ("execute", "x")
        yield Defect(f"user {who.uid} may not {what} {path}", f"chmod o+{sign} {path}")


def _first_line(image: Image, command: Command, program: str) -> Iterator[Defect]:
    """Yield what is wrong with the interpreter that a script names (execve(2))."""
    first = image.tree.texts.get(program, "").split("\n")[0]
    if not first.startswith("#!"):
        small = image.tree.files[program].size <= confidential.READ_AT_MOST
        if _SCRIPT.search(program) and small and not command.in_shell:
            yield Defect(
                f"{program} has no first line that names its interpreter (exec format error)",
                "begin it with #!/bin/sh, at the very first byte",
            )
        return
    if first.endswith("\r"):
        yield Defect(
            f"{program} has the line ends of Windows: the kernel looks for {first[2:].strip()}\\r, "
            "and says that there is no such file",
            "write it with the line ends of Unix (dos2unix; `*.sh text eol=lf` in .gitattributes)",
        )
        return
    words = first[2:].split()
    interpreter = image.tree.resolve(words[0]) if words else ""
    named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    if words and interpreter is None:
        yield Defect(
            f"{program} starts with {words[0]}, which is not there",
            "correct its first line, or install the interpreter",
        )
    elif words and posixpath.basename(words[0]) == "env" and named:
        search = ":".join(image.search_path)
        if image.tree.program(named, search, command.folder) is None:
            message = f"{program} is run by {named}, which is not there in PATH ({search})"
            yield Defect(message, _FIX)


# --- what an interpreter runs ---------------------------------------------------------------------


def _target(image: Image, command: Command, who: Account | None) -> Iterator[Defect]:
    kind, at = command.target
    word = command.word(at) if kind in ("file", "module") else ""
    if kind == "file" and word:
        yield from _file(image, command, posixpath.join(command.folder, word), who)
    elif kind == "module" and word and not _is_module(image, command, word):
        yield Defect(
            f"{command.name} runs the module {word}, which is not in {command.folder}, PYTHONPATH "
            f"or among the packages{_near(image, word.replace('.', '/') + '.py')}",
            "COPY it to where Python looks, install it, or correct the command",
        )


def _file(image: Image, command: Command, path: str, who: Account | None) -> Iterator[Defect]:
    mounted = image.config.get("Volumes") or {}
    real = image.tree.resolve(path)
    if real is None and command.is_shell:  # which looks for a name without a folder in PATH, too
        named, search = command.word(command.target[1]), ":".join(image.search_path)
        real = None if "/" in named else image.tree.program(named, search)
        path = real or path
    if real is None:
        if not any(path.startswith(f"{folder.rstrip('/')}/") for folder in mounted):
            message = f"{command.name} runs {path}, which is not there{_near(image, path)}"
            yield Defect(message, "COPY it into the image, or correct the command and WORKDIR")
    elif real in image.tree.folders:
        if command.is_python and image.tree.resolve(f"{path}/__main__.py") is None:
            yield Defect(f"{path} is a folder without __main__.py", "name the file to run")
    elif who:
        yield from _access(image, path, who, READ)


def _is_module(image: Image, command: Command, name: str) -> bool:
    """Tell whether Python may find a module to run: in the folder, PYTHONPATH, its packages, or
    where a `.pth` file of theirs leads."""
    first, tree = name.partition(".")[0], image.tree
    if first in sys.stdlib_module_names or any("__editable__" in path for path in tree.hooks):
        return True
    packages = [p for p in tree.folders if p.endswith(("/site-packages", "/dist-packages"))]
    folders = [command.folder, *image.environment.get("PYTHONPATH", "").split(":"), *packages]
    for path, text in tree.texts.items():
        if path.endswith(".pth"):
            lines = (line.strip() for line in text.splitlines())
            folders += [posixpath.join(posixpath.dirname(path), each) for each in lines if each]
    path = name.replace(".", "/")
    alike = [each for each in tree.files if f"/{path}." in each]
    for folder in folders:
        root = tree.resolve(posixpath.join(command.folder, folder))
        base = posixpath.normpath(f"{root}/{path}")
        if root in tree.files or any(each.startswith(f"{base}.") for each in alike):
            return True  # a file among the folders is an archive
        if root and tree.resolve(f"{base}/__main__.py"):
            return True
    return False


def _near(image: Image, path: str) -> str:
    name = posixpath.basename(path)
    found = next(image.tree.named(name), "")
    return f"; {found} is" if found and name else ""


def _installs(image: Image, command: Command) -> Iterator[Defect]:
    """Yield what would download packages at each start."""
    words = command.words
    quiet = {"--no-sync", "--offline"} & set(words) or image.environment.get("UV_NO_SYNC")
    if command.name == "uv" and words[1:2] == ("run",) and not quiet:
        yield Finding(
            "`uv run` compares the environment with the lock at each start, and downloads what it "
            "lacks: without a network the image does not start",
            "start the environment's python itself (.venv/bin/python), or write uv run --no-sync",
        )
    of_python = command.target == ("module", 2) and words[2:3] == ("pip",)
    if "install" in words[1:] and (_INSTALLS.search(words[0]) or of_python):
        yield Finding(
            f"`{' '.join(words)[:60]}` installs at each start: other versions another day, and "
            "nothing without a network",
            "install it in the Dockerfile (RUN)",
        )


CHECK = Check.of("entry-point", 3, run)
