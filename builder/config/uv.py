"""Python packages resolved by uv for the platform of an image.

A pin names the one wheel that an image's Python would choose: its size is then known, and two
builds install the same file. No address of an index is kept, because each builder has its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags, create_compatible_tags_selector
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builder.config import network
from builder.config import sources as plain
from builder.config.network import BuildNetwork
from builder.config.pins import Pin, dump, parse
from builder.config.sources import LARGEST, MadeWheel, NotPlainError
from builder.core import parallel
from builder.core.errors import InputError, OutsideError, fix_of

SIZE_TIMEOUT = 5.0
"""Seconds to ask an index for the size of one wheel."""

AGE = "7 days"
"""How old a release has to be for an upgrade: a stolen account is mostly noticed within days."""
SOURCE_ALONE = "is there as source alone"
EXCLUDE_NEWER = "UV_EXCLUDE_NEWER"
TAKEN_NOW = "BUILDER_NOW"
"""In the environment of `resolve`: the packages whose release may be of any age."""


@dataclass(frozen=True)
class Platform:
    """The platform that wheels run on: CPython `python` on Linux x86-64 with glibc 2.`glibc`."""

    python: str
    glibc: int


class NoSolution(Exception):
    """The requirements contradict each other; `str()` is uv's explanation in one line.

    sources: the packages without a wheel that it names.
    """

    def __init__(self, why: str, sources: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.sources = frozenset(sources)


def resolve(
    requirements: Iterable[str],
    platform: Platform,
    environment: Mapping[str, str],
    constraints: Mapping[str, str] | None = None,
    preferences: Mapping[str, str] | None = None,
    *options: str,
) -> dict[str, Pin]:
    """Return name -> pin of `requirements` and all that they depend on; a pin may lack its size.

    constraints: versions that must hold. preferences: versions that are kept where no requirement
    excludes them. options: of uv pip compile. A package of pure Python that an index has as source
    alone becomes a wheel (builder/config/sources.py). Raises NoSolution where the requirements
    contradict each other, OutsideError where the index cannot be reached, InputError for a package
    without a wheel in an index.
    """
    wanted = [*requirements]

    def compiled(sources: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        return _compiled(
            wanted, platform, environment, constraints or {}, preferences or {}, *options,
            sources=sources,
        )  # fmt: skip

    pins = _pinned(compiled, platform, ())
    if needed := {_NEED_SOURCE[name] for name in _NEED_SOURCE.keys() & pins.keys()} - pins.keys():
        with contextlib.suppress(NoSolution):
            return _pinned(compiled, platform, needed)
    return pins


_NEED_SOURCE: Final = dict.fromkeys(("omegaconf", "hydra-core"), "antlr4-python3-runtime")
"""Packages whose releases of the last years need one that is there as source alone (Requires-Dist
of omegaconf 2.1): with wheels alone, uv goes back to what they were before."""
_ROUNDS: Final = 20


def _pinned(
    compiled: Callable[[Mapping[str, Sequence[str]]], list[dict[str, Any]]],
    platform: Platform,
    sources: Iterable[str],
) -> dict[str, Pin]:
    """Return the pins of what uv finds; `sources` and what else has no wheel are taken as source,
    once it is known what they require. Raises NoSolution."""
    known: dict[str, tuple[str, ...]] = dict.fromkeys(sources, ())
    first: NoSolution | None = None
    for _ in range(_ROUNDS):
        try:
            packages = compiled(known)
        except NoSolution as error:
            first = first or error
            if not (new := error.sources - known.keys()):
                raise first from None
            known |= dict.fromkeys(new, ())
            continue
        made = {each["name"]: _made(each) for each in packages if each["name"] in known}
        requires = {name: wheel.requires for name, (_, wheel) in made.items()}
        if requires == {name: known[name] for name in made}:
            others = (each for each in packages if each["name"] not in made)
            pins = {each["name"]: _pin(each, platform) for each in others}
            return pins | {name: pin for name, (pin, _) in made.items()}
        known |= requires
    raise first or NoSolution(f"{', '.join(known)}: what their sources require contradicts itself")


@cache
def _source(url: str, sha256: str) -> bytes:
    """Return a source of an index. Raises OutsideError."""
    host = network.discover()
    with host.client() as client:
        data = client.answer("GET", host.with_login(url), most=LARGEST, follow=True).data
    if hashlib.sha256(data).hexdigest() != sha256:
        raise OutsideError(f"{url}: not the bytes that its index names", "lock again")
    return data


def _made(package: Mapping[str, Any]) -> tuple[Pin, MadeWheel]:
    """Return the pin of a package that is there as source alone, and the wheel that is made of it.
    Raises NoSolution."""
    name, version, sdist = package["name"], package["version"], package.get("sdist") or {}
    url, sha256 = sdist.get("url", ""), sdist.get("hashes", {}).get("sha256", "")
    try:
        if not (url and sha256):
            raise NotPlainError("its index gives no hash of it")
        wheel = plain.wheel_of(name, version, _source(url, sha256))
    except NotPlainError as why:
        raise NoSolution(f"{name} {version} {SOURCE_ALONE}, and {why}") from None
    pin = Pin(name, version, wheel.sha256, len(wheel.content), url, sha256)
    return pin, wheel


def addresses(
    pins: Iterable[Pin], platform: Platform, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the sha256 of each wheel -> where this machine's indexes have it, or the source that
    it is made from; those they lack left out.

    Raises OutsideError where the index cannot be reached, or has a version no more.
    """
    urls = dict[str, str]()
    for wanted in without_conflict(pins):
        made = {pin.source: pin.sha256 for pin in wanted.values() if pin.source}
        try:
            packages = _compiled(
                [f"{pin.name}=={pin.version}" for pin in wanted.values()],
                platform, environment, {}, {}, "--no-deps",
                sources={pin.name: () for pin in wanted.values() if pin.source},
            )  # fmt: skip
        except NoSolution as error:
            raise OutsideError(
                f"the indexes lack a locked package: {error}",
                "run builder lock --upgrade, or name an index that has it in UV_DEFAULT_INDEX",
            ) from None
        hashes = {pin.sha256 for pin in wanted.values()}
        urls |= {
            wheel["hashes"]["sha256"]: wheel["url"]
            for package in packages
            for wheel in package.get("wheels", ())
            if wheel["hashes"].get("sha256") in hashes and "url" in wheel
        }
        urls |= {
            made[sdist["hashes"]["sha256"]]: sdist["url"]
            for sdist in (package.get("sdist") for package in packages)
            if sdist and sdist["hashes"].get("sha256") in made
        }
    return urls


def without_conflict(pins: Iterable[Pin]) -> list[dict[str, Pin]]:
    """Return the pins by name, in as few groups as leave no name twice: targets lock other
    versions.
    """
    groups: list[dict[str, Pin]] = []
    for pin in {pin.sha256: pin for pin in pins}.values():
        for group in groups:
            if pin.name not in group:
                group[pin.name] = pin
                break
        else:
            groups.append({pin.name: pin})
    return groups


def _compiled(
    requirements: Iterable[str],
    platform: Platform,
    environment: Mapping[str, str],
    constraints: Mapping[str, str],
    preferences: Mapping[str, str],
    *options: str,
    sources: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Return the packages of the pylock.toml that uv makes of requirements. sources: those that are
    taken as source, with what they require, so that uv runs nothing of them."""
    with tempfile.TemporaryDirectory(prefix="builder-lock-") as scratch:
        output = Path(scratch) / "pylock.toml"
        wanted, settings, prefix = "in", output.with_name("uv.toml"), ""
        if pinned := environment.get(network.PINNED):
            wanted, settings, prefix = (
                network.PYPROJECT,
                output.with_name(network.PYPROJECT),
                "tool.uv.",
            )
            settings.write_text(_project(requirements, platform.python, pinned.split()))
        else:
            output.with_name(wanted).write_text("\n".join(requirements) + "\n")
        output.with_name("constraints").write_text(
            "".join(f"{name}=={version}\n" for name, version in constraints.items())
        )
        if preferences:  # uv keeps the versions that it finds in the output file
            lines = ['lock-version = "1.0"', 'created-by = "builder"']
            for name, version in preferences.items():
                lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
            output.write_text("\n".join(lines) + "\n")
        command = [uv_program(), "pip", "compile", wanted, "--constraints", "constraints"]
        command += ["--output-file", output.name, "--format", "pylock.toml", "--no-header"]
        command += ["--python-version", platform.python]
        command += ["--python-platform", f"x86_64-manylinux_2_{platform.glibc}"]
        command += ["--python", sys.executable, "--only-binary", ":all:", "--quiet", *options]
        command += ["--no-preview"]  # there uv takes variants, which pylock.toml cannot hold
        for name, requires in sources.items():
            command += ["--no-binary", name]
            with settings.open("a") as file:
                row = f"name = {json.dumps(name)}\nrequires-dist = {json.dumps(list(requires))}\n"
                file.write(f"[[{prefix}dependency-metadata]]\n{row}")
        for name in environment.get(TAKEN_NOW, "").split():
            command += ["--exclude-newer-package", f"{name}=false"]
        done = subprocess.run(
            command,
            cwd=scratch,
            env={**os.environ, **environment, "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise _failure(done.stderr)
        packages: list[dict[str, Any]] = tomllib.loads(output.read_text()).get("packages", [])
    return packages


def _project(requirements: Iterable[str], python: str, pinned: Iterable[str]) -> str:
    """Return a pyproject.toml that asks for requirements: there uv takes packages from one index.

    pinned: NAME=URL of each.
    """
    text = f'[project]\nname = "locked"\nversion = "0"\nrequires-python = ">={python}"\n'
    text += f"dependencies = {json.dumps(list(requirements))}\n"
    for name, _, url in (each.partition("=") for each in pinned):
        text += f'[tool.uv.sources.{name}]\nindex = "of-{name}"\n'
        text += f'[[tool.uv.index]]\nname = "of-{name}"\nurl = {json.dumps(url)}\nexplicit = true\n'
    return text


def with_sizes(pins: Mapping[str, Pin], known: Iterable[Pin], host: BuildNetwork) -> dict[str, Pin]:
    """Return the pins with the size of each wheel, from a `known` pin of the same hash or from the
    index.

    host: how the index is reached. A size that the index does not give stays None.
    """
    from urllib3.exceptions import HTTPError

    sizes = {pin.sha256: pin.bytes for pin in known if pin.bytes is not None}
    missing = [p for p in pins.values() if p.bytes is None and p.sha256 not in sizes and p.url]

    def ask(pin: Pin) -> int | None:
        try:
            answer = client.answer("HEAD", pin.url, most=0, follow=True)
        except HTTPError:
            return None
        length = answer.headers.get("content-length", "") if answer.status == 200 else ""
        return int(length) if length.isdigit() else None

    if missing:
        with host.client(connect=SIZE_TIMEOUT, read=SIZE_TIMEOUT) as client:
            asked = parallel.each(ask, missing)
        sizes |= {
            p.sha256: size for p, size in zip(missing, asked, strict=True) if size is not None
        }
    return {
        name: replace(pin, bytes=sizes.get(pin.sha256)) if pin.bytes is None else pin
        for name, pin in pins.items()
    }


def uv_program() -> str:
    """Return the path of the uv that is installed with the factory. Raises OutsideError."""
    import uv

    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise OutsideError(
            "uv, which resolves the Python packages, is not installed",
            "reinstall the project's environment: make clean, then make image",
        ) from error


def _pin(package: Mapping[str, Any], platform: Platform) -> Pin:
    offered = package.get("wheels", ())
    wheels = {
        str(wheel.get("name") or unquote(wheel["url"].rpartition("/")[2])): wheel
        for wheel in offered
        if "sha256" in wheel["hashes"]
    }
    name = best_wheel(wheels, platform)
    if name is None:
        raise InputError(
            f"requirements: {package['name']} has no wheel for CPython {platform.python} on Linux",
            "name a version that an index has as a wheel; images hold no compiler",
        )
    wheel = wheels[name]
    pin = Pin(
        name=canonicalize_name(package["name"]),
        version=package["version"],
        sha256=wheel["hashes"]["sha256"],
        bytes=wheel.get("size"),
        url=wheel.get("url", ""),
    )
    if parse(dump([pin], "")) != (pin,):
        raise OutsideError(
            f"the index describes {package['name']} in a way that no lock can hold",
            "name another index in UV_DEFAULT_INDEX",
        )
    return pin


def best_wheel(names: Iterable[str], platform: Platform) -> str | None:
    """Return the wheel's file name that an installer prefers (PEP 425), None where none fits."""
    wheels = []
    for name in sorted(names):
        with contextlib.suppress(InvalidWheelFilename):  # no installer takes such a file
            wheels.append((name, parse_wheel_filename(name)[3]))
    return next(_preferring(platform)(wheels), None)


@cache
def _preferring(platform: Platform) -> Callable[[Iterable[tuple[str, Set[Tag]]]], Iterator[str]]:
    """Return what takes the wheels that fit out of some with their tags, the best one first."""
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    systems = []
    for minor in range(platform.glibc, 4, -1):
        systems.append(f"manylinux_2_{minor}_x86_64")
        if minor in legacy:
            systems.append(f"{legacy[minor]}_x86_64")
    systems.append("linux_x86_64")
    version = [int(part) for part in platform.python.split(".")]
    tags = [*cpython_tags(version, platforms=systems)]
    tags += compatible_tags(version, "cp" + "".join(map(str, version)), systems)
    return create_compatible_tags_selector(tags)


def _failure(stderr: str) -> Exception:
    lines = [re.sub(r"^\s*(error|cause):\s*", "", line).strip() for line in stderr.splitlines()]
    lines = [line for line in lines if line]
    if any("No solution found" in line for line in lines):
        reason = " ".join(line for line in lines if not line.startswith(("No solution", "hint:")))
        if young := re.findall(r"`(\S+)` was filtered by `exclude-newer`", stderr):
            reason += f" Releases of {young[0]} are too young or without a date: --now {young[0]}"
        lacking = re.findall(r"Wheels are required for `([^`]+)`", stderr)
        return NoSolution(re.sub(r"\s+", " ", reason), lacking)
    last = next((line for line in lines if line.startswith("Failed to fetch")), lines[-1:])
    reason = re.sub(r"//[^/@\s]*@", "//", last if isinstance(last, str) else " ".join(last))
    return OutsideError(
        f"the Python packages cannot be resolved: {reason or 'uv said nothing'}",
        fix_of(
            stderr,
            "check the network, or name an index that is reachable in UV_DEFAULT_INDEX; "
            "the lock that is there stays valid",
        ),
    )
