"""Is anything in the image that should not be? Secrets, caches, and what no lock accounts for.

Every layer is read, because a layer keeps what a later one deletes or overwrites.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from packaging.utils import canonicalize_name

from builder.image.plan import APP, site_packages
from builder.prove import waste
from builder.prove.checks import secrets
from builder.prove.checks.installed import shared
from builder.prove.image import Image, Subject, listed
from builder.prove.receipts import Defect
from builder.prove.suite import Answer, Check
from builder.reading.layers import Tree

LARGEST: Final = 15
"""Files that the receipt names."""

_INSTALLED: Final = re.compile(
    r"^(.*-packages)/([^/]+?)-([^/-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info(?:/|$)"
)
_PACKAGES: Final = re.compile(r"/(site|dist)-packages/|^/usr/(local/)?lib/python3[\d.]*/")
_ASIDE: Final = re.compile(r"(tests?|docs?|examples?|benchmarks?)/|[^/]+\.(md|rst|txt|toml|cfg)$|/")
"""What packages put beside themselves, and nobody imports."""
_LIBRARY: Final = re.compile(r"\.so(\.[\w.]+)?$")
_CONFIGURES: Final = re.compile(r"/etc/ld\.so\.(preload|conf(\.d/.*)?)$")
_BYTECODE: Final = re.compile(r"/__pycache__/([^/]+)\.cpython-\d+(\.opt-\d)?\.pyc$")
_LOADER: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"),
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib/x86_64-linux-gnu"),
)


def run(image: Image) -> Answer:
    """Look for secrets; in an image of ours compare it with its locks, too."""
    defects, seen = secrets.run(image)
    if image.subject is None:
        return defects, seen
    installed = packages(image)
    sizes = sorted(((entry.size, path) for path, entry in image.tree.files.items()), reverse=True)
    wrong = [*defects, *_compared(image.subject, installed)]
    if image.has_own_base:
        wrong += [*_shared(image), *_caches(image), *_unaccounted(image, image.subject)]
    return wrong, {
        **seen,
        "packages": {name: _all(versions) for name, versions in sorted(installed.items())},
        "files": len(sizes),
        "bytes": sum(size for size, _ in sizes),
        "largest_files": [{"path": path, "bytes": size} for size, path in sizes[:LARGEST]],
    }


# --- what the locks say ---------------------------------------------------------------------------


def packages(image: Image) -> dict[str, set[str]]:
    """Return the versions of each Python package, by its canonical name."""
    own = site_packages(image.subject.stack.python) if image.subject else ""
    versions: dict[str, set[str]] = {}
    for path in image.tree.files:
        match = _INSTALLED.match(path) if "-info" in path else None
        if match and (match[1] == own or not image.has_own_base):
            versions.setdefault(canonicalize_name(match[2]), set()).add(match[3])
    return versions


def _all(versions: set[str]) -> str:
    return " and ".join(sorted(versions))


def _compared(subject: Subject, installed: Mapping[str, set[str]]) -> Iterator[Defect]:
    locked = {canonicalize_name(name): version for name, version in subject.packages.items()}
    fix = "build the image again from its locks"
    for name, version in sorted(locked.items()):
        if name not in installed:
            yield Defect(f"{name} {version} is locked and not installed", fix)
        elif version not in installed[name]:
            message = f"{name} is {_all(installed[name])} in the image, the lock says {version}"
            yield Defect(message, fix)
    extra = [f"{name} {_all(installed[name])}" for name in sorted(installed.keys() - locked.keys())]
    if extra and locked and subject.spec.has_own_base:
        yield Defect(
            f"installed and not locked: {listed(extra)}",
            "name it in `requirements`, then lock and build",
        )


def _shared(image: Image) -> Iterator[Defect]:
    """Yield the packages that own the same files; each has tests and documents where it likes."""
    top = f"{site_packages(image.subject.stack.python)}/" if image.subject else ""
    vendored = re.compile(rf"{top}.*/.*/")
    records = [each for path, each in image.tree.records.items() if not vendored.match(path)]
    for names, paths in shared(records).items():
        own = [path for path in paths if not _ASIDE.match(path.removeprefix(top))]
        if own:
            yield Defect(
                f"{names} install other files as {listed(own)}: the upper one's count, and the "
                "other package is broken",
                "leave out of the requirements the one that the program does not need",
            )


def _caches(image: Image) -> Iterator[Defect]:
    sizes: dict[str, int] = {}
    for path, entry in image.tree.files.items():
        cache = waste.cache(path) or ("root's cache" if path.startswith("/root/.cache/") else "")
        if cache and entry.size:
            sizes[cache] = sizes.get(cache, 0) + entry.size
    for cache, size in sorted(sizes.items()):
        yield Defect(
            f"{cache} ({size:,} bytes) was left in the image",
            "remove it in the RUN that makes it, or use a cache mount",
        )


def _unaccounted(image: Image, subject: Subject) -> Iterator[Defect]:
    """Yield the files that would be run, and that neither the base nor the program brings.

    The layers of the base have the digests that images/layers.lock says. Above them lies the
    program. Whatever else a Dockerfile adds may be data, and no program.
    """
    tree = image.tree

    def is_known(path: str) -> bool:
        source = _BYTECODE.sub(r"/\1.py", path)
        if path.startswith(f"{APP}/") or tree.layer.get(path) in subject.base_layers:
            return True
        return source != path and is_known(source)

    is_run = _finder(tree, image.environment)
    unknown = []
    for path, entry in tree.files.items():
        target = tree.resolve(path) if entry.link else path
        if target and is_run(path) and not is_known(target if target in tree.files else path):
            unknown.append(path)
    if unknown:
        yield Defect(
            f"nobody accounts for {listed(sorted(unknown))}: no locked package brings it, "
            "and it would be run",
            "build the image again from its locks; lock the package that brings it, as "
            "`requirements` or `apt`, or keep the file in the program's folder",
        )


def _finder(tree: Tree, environment: Mapping[str, str]) -> Callable[[str], bool]:
    """Return what tells whether a shell, Python or the loader would find a file by itself."""

    def folders(name: str) -> set[str]:
        listed = [folder for folder in environment.get(name, "").split(":") if folder.strip("/")]
        return {tree.resolve(folder) or folder.rstrip("/") for folder in listed}

    programs, modules = folders("PATH"), folders("PYTHONPATH")
    libraries = folders("LD_LIBRARY_PATH").union(_LOADER)

    def is_run(path: str) -> bool:
        folder, name = posixpath.split(path)
        if folder in programs or _PACKAGES.search(path) or _CONFIGURES.match(path):
            return True
        if any(path.startswith(f"{top}/") for top in modules):
            return True
        return bool(_LIBRARY.search(name)) and (folder in libraries or "/glibc-hwcaps/" in path)

    return is_run


CHECK = Check.of("contents", 7, run)
