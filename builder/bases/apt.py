"""Debian's versions, chosen by Debian's own apt in a container of an OS root.

The container gets the host's mirror, proxies and certificates as files, and goes away with them.
Nothing is installed in it: what counts as installed is a list of packages that the lock names.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builder.bases import deb, debs, osroot
from builder.bases.layer import Compression
from builder.core.debian import sources
from builder.core.display import masked
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.engine import refusals
from builder.lock.debs import from_apt

if TYPE_CHECKING:
    from builder.bases.osroot import Root
    from builder.bases.store import Store
    from builder.core.debian import Archives
    from builder.core.network import BuildNetwork
    from builder.engine import Engine
    from builder.lock.debs import Deb

KIND: Final = "training-image-factory.apt"
"""The label of the containers that apt chooses in."""
_PLACE: Final = "run/secrets"
_NEXT: Final = "== next"

# An archive need not have updates or security fixes: testing and unstable have none.
_CHOOSE: Final = f"""\
set -eu
[ ! -f /{_PLACE}/network ] || . /{_PLACE}/network
rm -rf /etc/apt/sources.list.d/* /etc/apt/preferences.d/*
cp /{_PLACE}/first /etc/apt/sources.list
while read -r line; do
  set -- $line
  ! /usr/lib/apt/apt-helper download-file "$3/dists/$4/InRelease" /tmp/InRelease >/dev/null 2>&1 \\
    || echo "$line" >> /etc/apt/sources.list
done < /{_PLACE}/others
update() {{ apt-get update -qq -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any "$@"; }}
if ! update 2>/tmp/said; then
  cat /tmp/said >&2
  grep -q 'is expired' /tmp/said || exit 100
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
    -o Dir::State::status=/{_PLACE}/status $names
done < /{_PLACE}/wanted
"""


@dataclass(frozen=True)
class ContainerApt:
    """Chooses versions. root: any OS root that this machine has or can make; apt of it runs."""

    root: Root
    engine: Engine
    host: BuildNetwork
    archives: Archives
    store: Store
    on_event: OnEvent = ignore
    _known: dict[object, tuple[tuple[Deb, ...], ...]] = field(default_factory=dict, repr=False)

    def __call__(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[Deb, ...]
    ) -> tuple[tuple[Deb, ...], ...]:
        """For each list of names: what apt installs for it, on top of `installed`.

        Raises OutsideError for a package that there is not, and for a mirror that does not answer.
        """
        key = (suite, tuple(map(tuple, wanted)), installed)
        if key not in self._known:
            with step(f"Debian {suite}: choose versions", self.on_event), refusals(KIND):
                self._known[key] = self._choose(suite, wanted, installed)
        return self._known[key]

    def _choose(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[Deb, ...]
    ) -> tuple[tuple[Deb, ...], ...]:
        paths = debs.fetch(installed, self.archives, self.on_event)
        status = "\n".join(_installed(path) for path in paths.values())
        first, *others = sources(self.archives, suite, self.host)
        given = {
            **self.host.secrets(),
            "first": first.encode(),
            "others": "".join(others).encode(),
            "status": status.encode(),
            "wanted": "".join(f"{' '.join(names)}\n" for names in wanted).encode(),
            "choose": _CHOOSE.encode(),
        }
        said = self._run(suite, given)
        dates: dict[str, str] = {}
        for archive, date in re.findall(r"(?m)^\S+?(-security)?_(?:In)?Release Date: (.*)$", said):
            name = f"debian{archive}"
            dates[name] = max(dates.get(name, date), date, key=_sortable)
        dates.setdefault("debian-security", dates["debian"])
        return tuple(from_apt(part, dates) for part in said.split(f"{_NEXT}\n")[1:])

    def _run(self, suite: str, given: Mapping[str, bytes]) -> str:
        """What the script printed. Raises OutsideError with what apt said."""
        layer = osroot.make(
            self.root, self.engine, self.archives, self.store, Compression(), self.on_event
        )
        command = ["/bin/sh", f"/{_PLACE}/choose"]
        # a proxy or a mirror may be on this machine's own address
        with osroot.container_of(
            self.engine, KIND, layer, self.store, command, "host"
        ) as container:
            container.put_archive("/", _archive(given))
            container.start()
            status = container.wait()["StatusCode"]
            errors = container.logs(stdout=False, stderr=True).decode(errors="replace")
            if status:
                raise _refused(suite, self.archives.debian, errors)
            return str(container.logs(stdout=True, stderr=False).decode())


def _sortable(date: str) -> Any:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(date)


def _installed(path: Path) -> str:
    """A package's entry in a dpkg status that has it installed."""
    text = deb.control(path)["control"].decode().rstrip("\n")
    return f"{text}\nStatus: install ok installed\n"


def _archive(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(f"{_PLACE}/{name}")
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _refused(suite: str, mirror: str, said: str) -> OutsideError:
    pattern = r"(?m)Unable to locate package (\S+)|Version '(\S+)' for '(\S+)' was not"
    pattern += r"|Package '?(\S+?)'? has no installation"
    if match := re.search(pattern, said):
        name, version, of, virtual = match.groups()
        what = f"{of}={version}" if of else name or virtual
        return OutsideError(
            f"Debian {suite} has no package {what}",
            "look for its name among Debian's packages, and correct image.yaml's `apt`",
        )
    lines = [line for line in said.splitlines() if line.startswith("E:")]
    why = (lines or said.strip().splitlines() or ["no message"])[0].removeprefix("E:").strip()
    return OutsideError(
        f"apt could not read Debian {suite} from {masked(mirror)}: {masked(why)}",
        "check the network and the proxy; debian_mirror in builder.toml names another mirror",
    )
