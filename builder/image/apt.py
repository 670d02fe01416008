"""Debian's versions for a lock, chosen by Debian's own apt in a container of a rootfs.

The container gets the host's mirror, proxies and certificates as files, and goes away with them.
Nothing is installed in it: what counts as installed is a list of packages that the lock names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from builder.config import debian, debian_packages
from builder.config.debian import Archives
from builder.config.debian_packages import DebianPackage, from_apt
from builder.core import project
from builder.core.display import masked
from builder.core.docker_sdk import refusals
from builder.core.errors import InputError, OutsideError, fix_of
from builder.core.events import OnEvent, ignore, step
from builder.core.project import IMAGES
from builder.core.settings import Settings
from builder.engine import containers
from builder.engine.discovery import connect
from builder.image import content_store, deb, rootfs
from builder.image.download import fetch_debs
from builder.image.layer import Compression
from builder.image.plan import Rootfs

KIND: Final = "training-image-factory.apt"
"""The label of the containers that apt chooses in."""
_FOLDER: Final = "run/secrets"
_NEXT: Final = "== next"

# An archive need not have updates or security fixes: testing and unstable have none.
_CHOOSE: Final = f"""\
set -eu
[ ! -f /{_FOLDER}/network ] || . /{_FOLDER}/network
rm -rf /etc/apt/sources.list.d/* /etc/apt/preferences.d/*
cp /{_FOLDER}/first /etc/apt/sources.list
while read -r line; do
  set -- $line
  ! /usr/lib/apt/apt-helper download-file "$3/dists/$4/InRelease" /tmp/InRelease >/dev/null 2>&1 \\
    || echo "$line" >> /etc/apt/sources.list
done < /{_FOLDER}/others
update() {{ apt-get update -qq -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any "$@"; }}
if ! update 2>/tmp/errors; then
  cat /tmp/errors >&2
  grep -q 'is expired' /tmp/errors || exit 100
  echo 'W: used all the same' >&2
  update -o Acquire::Check-Valid-Until=false
fi
for file in /var/lib/apt/lists/*Release; do  # an archive without signatures has no InRelease
  echo "$file $(grep -m 1 '^Date: ' "$file")"
done
set -f
while read -r names; do
  echo '{_NEXT}'
  apt-get install -qq --print-uris --no-install-recommends -o Acquire::ForceHash=SHA256 \\
    -o Dir::State::status=/{_FOLDER}/status $names
done < /{_FOLDER}/wanted
"""


class ContainerApt:
    """Chooses versions for the project at `root`; see builder.config.locking.Apt.

    Most locks need no new Debian package, so the engine is not used before the first call.
    """

    def __init__(self, root: Path, settings: Settings, on_event: OnEvent = ignore) -> None:
        self._root, self._settings, self._on_event = root, settings, on_event
        self._chosen: dict[object, tuple[tuple[DebianPackage, ...], ...]] = {}

    @cached_property
    def archives(self) -> Archives:
        return debian.archives(self._settings)

    def __call__(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[DebianPackage, ...]
    ) -> tuple[tuple[DebianPackage, ...], ...]:
        """Return, for each list of names, what apt installs for it on top of `installed`.

        Raises OutsideError for a package that there is not, and for a mirror that does not answer.
        """
        key = (suite, tuple(map(tuple, wanted)), installed)
        if key not in self._chosen:
            with step(f"Debian {suite}: choose versions", self._on_event), refusals(KIND):
                self._chosen[key] = self._choose(suite, wanted, installed)
        return self._chosen[key]

    def _choose(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[DebianPackage, ...]
    ) -> tuple[tuple[DebianPackage, ...], ...]:
        paths = fetch_debs(installed, self.archives, self._on_event)
        status = "\n".join(_installed(path) for path in paths.values())
        first, *others = self.archives.sources(suite)
        inputs = {
            **debian.build_secrets(),
            "first": first.encode(),
            "others": "".join(others).encode(),
            "status": status.encode(),
            "wanted": "".join(f"{' '.join(names)}\n" for names in wanted).encode(),
            "choose": _CHOOSE.encode(),
        }
        printed = self._run(suite, {f"{_FOLDER}/{name}": data for name, data in inputs.items()})
        from email.utils import parsedate_to_datetime

        dates: dict[str, str] = {}
        for pocket, date in re.findall(
            r"(?m)^\S+?(-security)?_(?:In)?Release Date: (.*)$", printed
        ):
            name = f"debian{pocket}"
            dates[name] = max(dates.get(name, date), date, key=parsedate_to_datetime)
        dates.setdefault("debian-security", dates["debian"])
        return tuple(from_apt(part, dates) for part in printed.split(f"{_NEXT}\n")[1:])

    def _run(self, suite: str, inputs: Mapping[str, bytes]) -> str:
        """Return what the script printed. Raises OutsideError with apt's own message."""
        engine = connect(self._settings, on_event=self._on_event)
        store = content_store.of_this_machine()
        layer = rootfs.make(
            self._rootfs(), engine, self.archives, store, Compression(), self._on_event
        )
        command = ["/bin/sh", f"/{_FOLDER}/choose"]
        # a proxy or a mirror may be on this machine's own address
        with rootfs.container_of(engine, KIND, layer, store, command, "host") as container:
            container.put_archive("/", containers.archive(inputs, 0o600))
            container.start()
            status = container.wait()["StatusCode"]
            errors = container.logs(stdout=False, stderr=True).decode(errors="replace")
            if status:
                raise _failed(suite, self.archives.debian, errors)
            return str(container.logs(stdout=True, stderr=False).decode())

    def _rootfs(self) -> Rootfs:
        """Return the rootfs whose apt runs: a locked one of the project, else of the factory."""
        for folder in (self._root, project.factory()):
            for path in sorted((folder / IMAGES).glob("os-*.lock")):
                packages = debian_packages.parse(path.read_text(encoding="utf-8"))
                return Rootfs(path.stem.removeprefix("os-"), packages)
        raise InputError(
            "images/os-<suite>.lock: there is none to start from",
            "take one from the factory's images/",
        )


def _installed(path: Path) -> str:
    """Return a package's entry in a dpkg status that has it installed."""
    text = deb.control(path)["control"].decode().rstrip("\n")
    return f"{text}\nStatus: install ok installed\n"


def _failed(suite: str, mirror: str, printed: str) -> OutsideError:
    pattern = r"(?m)Unable to locate package (\S+)|Version '(\S+)' for '(\S+)' was not"
    pattern += r"|Package '?(\S+?)'? has no installation"
    if match := re.search(pattern, printed):
        name, version, of, virtual = match.groups()
        what = f"{of}={version}" if of else name or virtual
        return OutsideError(
            f"Debian {suite} has no package {what}",
            "look for its name among Debian's packages, and correct image.yaml's `apt`",
        )
    lines = [line for line in printed.splitlines() if line.startswith("E:")]
    why = (lines or printed.strip().splitlines() or ["no message"])[0].removeprefix("E:").strip()
    return OutsideError(
        f"apt could not read Debian {suite} from {masked(mirror)}: {masked(why)}",
        fix_of(
            printed,
            "check the network and the proxy; debian_mirror in builder.toml names another mirror",
        ),
    )
