"""What is in the image that should not be, and how large is everything?

It runs as root and with nothing mounted over /tmp, so that it sees every file of the image.

Request: {"user": the image's USER, "python": "3.11", "packages": {name: version}, "strict": true,
          "skip": [folders that are mounted into the container], "environment": {name: value},
          "debian": [locked packages], "own": [patterns of the factory's files], "program": "/app"}
`strict`: every file of the image is ours, so a package beyond the locks, a cache, or a file that
would be run and that nobody accounts for is wrong. In a published base, they are only reported.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH118, PTH119, PTH123
from __future__ import annotations

import json
import os
import platform
import pwd
import re
import stat
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

try:
    from builder.core import confidential
    from builder.prove.probes import accounts
except ImportError:  # inside an image, where they lie beside this file
    import accounts  # type: ignore[import-not-found, no-redef]
    import confidential  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Json = dict[str, Any]
    Wrong = Callable[[str, str], None]

TOP = 15

CACHES = {
    "var/lib/apt/lists": "apt's package lists",
    "var/cache/apt": "apt's cache",
    "root/.cache": "a cache of root's",
}
_CACHE_FOLDERS = re.compile(r"(?:^|/)(?:\.cache/(?:pip|uv|pypoetry)|\.conda/pkgs)(?:/|$)")


class RegularFile:
    """One regular file: its path without the root in front, and its size in bytes."""

    __slots__ = ("path", "size")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size


def walk(root: str, skip: list[str]) -> Iterator[RegularFile]:
    """Yield every regular file of the image, once each, and each folder .git as a file of size 0.

    A file .git is left out: it leads to a repository elsewhere (gitrepository-layout(5)), or is the
    empty one that uv puts into its cache.
    """
    left_out = {os.path.join(root, name.lstrip("/")) for name in (*skip, "proc", "sys", "dev")}
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if os.path.join(folder, f) not in left_out)
        inside = os.path.relpath(folder, root)
        prefix = "/" if inside == "." else f"/{inside}/"
        if ".git" in folders:
            folders.remove(".git")
            yield RegularFile(f"{prefix}.git", 0)
        for name in sorted(names):
            status = os.lstat(os.path.join(folder, name))
            key = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and key not in seen and name != ".git":
                seen.add(key)
                yield RegularFile(prefix + name, status.st_size)


def find_secret(root: str, file: RegularFile) -> str | None:
    """Name the kind of secret that a file is, by its name or by what it holds."""
    if os.path.basename(file.path) == ".git":
        return "a Git repository with its history"
    content = b""
    compiled = "/__pycache__/" in file.path  # the source beside it holds the same
    if not compiled and 0 < file.size <= confidential.READ_AT_MOST:
        try:
            with open(os.path.join(root, file.path.lstrip("/")), "rb") as opened:
                content = opened.read()
        except OSError:
            pass
    return confidential.secret(file.path, content)


def cache_of(path: str) -> str | None:
    """Name the cache that a path belongs to, if any."""
    for folder, what in CACHES.items():
        if path.startswith(f"/{folder}/") and os.path.basename(path) not in ("lock", ".keep"):
            return what
    return "a package manager's cache" if _CACHE_FOLDERS.search(path) else None


def canonical(name: str) -> str:
    """Return a package's name as every tool compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


class InstalledPackage:
    """An installed package: its version, its unpacked size, and each file's size by its RECORD."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.bytes = 0
        self.recorded: dict[str, int | None] = {}


def installed(root: str, path: list[str] | None = None) -> dict[str, InstalledPackage]:
    """Return every package that this Python finds, by canonical name."""
    packages: dict[str, InstalledPackage] = {}
    for distribution in metadata.distributions(path=sys.path if path is None else path):
        name = canonical(distribution.metadata["Name"] or "")
        if not name or name in packages:
            continue
        package = packages[name] = InstalledPackage(distribution.version)
        for file in distribution.files or ():
            place = os.path.realpath(str(distribution.locate_file(file)))
            package.recorded["/" + os.path.relpath(place, root)] = file.size
    return packages


def check_packages(packages: dict[str, InstalledPackage], request: Json, wrong: Wrong) -> None:
    """Compare what is installed with the locks."""
    locked = {canonical(name): version for name, version in request["packages"].items()}
    fix = "build the image again from its locks"
    for name, version in sorted(locked.items()):
        if name not in packages:
            wrong(f"{name} {version} is locked and not installed", fix)
        elif packages[name].version != version:
            wrong(f"{name} is {packages[name].version} in the image, the lock says {version}", fix)
    extra = sorted(set(packages) - set(locked))
    if extra and locked and request["strict"]:
        names = ", ".join(f"{name} {packages[name].version}" for name in extra)
        wrong(
            f"installed and not locked: {names}", "name it in `requirements`, then lock and build"
        )


def check_files(
    root: str,
    packages: dict[str, InstalledPackage],
    request: Json,
    path: list[str] | None,
    wrong: Wrong,
) -> Json:
    """Refuse files that would be run and that nobody accounts for. Returns what was seen."""
    names = request["packages"] if request["strict"] else ()
    locked = {canonical(name) for name in names} or packages
    recorded = {file for name in locked if name in packages for file in packages[name].recorded}
    refused, seen = accounts.report(root, request, recorded, sys.path if path is None else path)
    if refused and request["strict"]:
        more = f" (and {len(refused) - 3} more)" if len(refused) > 3 else ""
        wrong(
            f"nobody accounts for {', '.join(refused[:3])}{more}: no locked package brings it, and "
            "it would be run",
            "build the image again from its locks; lock the package that brings it, as "
            "`requirements` or `apt`, or keep the file in the program's folder",
        )
    return seen


def check_user(user: str, wrong: Wrong) -> int | None:
    """Look whether the image runs as root. Returns the uid."""
    name = user.split(":")[0]
    try:
        uid = int(name) if name.isdigit() else pwd.getpwnam(name or "root").pw_uid
    except KeyError:
        wrong(f"the image's USER {name!r} is not in its /etc/passwd", "add it, or give its uid")
        return None
    if uid == 0:
        wrong(
            "the image runs as root: its outputs would belong to root",
            "set `user` in image.yaml to an uid that is not 0 (1000 by default)",
        )
    return uid


def probe(request: Json, root: str = "/", path: list[str] | None = None) -> Json:
    """Return every question. root, path (where packages are): a test describes another image by
    them.
    """
    problems: list[dict[str, str]] = []

    def wrong(message: str, fix: str) -> None:
        problems.append({"message": message, "fix": fix})

    uid = check_user(request["user"], wrong)
    python = platform.python_version()
    if request["python"] and not f"{python}.".startswith(f"{request['python']}."):
        wrong(f"Python is {python}, image.yaml says {request['python']}", "build the image again")
    packages = installed(root, path)
    check_packages(packages, request, wrong)
    owner = {file: name for name, package in packages.items() for file in package.recorded}
    total, count = 0, 0
    largest: list[tuple[int, str]] = []
    caches: dict[str, int] = {}
    for file in walk(root, request["skip"]):
        total, count = total + file.size, count + 1
        largest.append((file.size, file.path))
        package = packages.get(owner.get(file.path, ""))
        if package is not None:
            package.bytes += file.size
            if package.recorded[file.path] == file.size:
                continue  # a public file, unchanged
        cache = cache_of(file.path)
        if cache is not None:
            caches[cache] = caches.get(cache, 0) + file.size
        secret = find_secret(root, file)
        if secret is not None:
            wrong(
                f"the image holds {secret}: {file.path}",
                "take it out of what is copied, and hand it to the build as a secret; if this "
                "image was ever pushed, revoke it",
            )
    if request["strict"]:
        for cache, size in sorted(caches.items()):
            wrong(
                f"{cache} ({size:,} bytes) was left in the image",
                "remove it in the RUN that makes it, or use a cache mount",
            )
    by_size = sorted(packages.items(), key=lambda item: -item[1].bytes)
    seen = {
        "uid": uid,
        "python": python,
        "bytes": total,
        "files": count,
        "caches": caches,
        "largest_packages": [
            {"name": name, "version": p.version, "bytes": p.bytes} for name, p in by_size[:TOP]
        ],
        "largest_files": [
            {"path": path, "bytes": size} for size, path in sorted(largest, reverse=True)[:TOP]
        ],
        "packages": {name: package.version for name, package in sorted(packages.items())},
        **check_files(root, packages, request, path, wrong),
    }
    return {"problems": problems, "seen": seen}


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
