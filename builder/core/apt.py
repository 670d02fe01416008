"""The Debian mirror of this machine's apt, and its release. The formats: sources.list(5)."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError

KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
"""In every Debian root since 12. It is named because newer releases trust no key by default."""

_ALIASES: Final = {"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"}
_RELEASES: Final = {"buster", "bullseye", "bookworm", "trixie", "forky", "duke"}
_POCKETS: Final = ("-updates", "-security", "-backports", "-proposed-updates", "/updates")
_OPTIONS: Final = {
    "arch": "Architectures",
    "signed-by": "Signed-By",
    "trusted": "Trusted",
    "check-valid-until": "Check-Valid-Until",
}


@dataclass(frozen=True)
class AptSource:
    """An archive that the host's apt uses, with the options of its entry (deb822 name -> value)."""

    uri: str
    suites: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    components: str = "main"

    def stanza(self, suite: str) -> str:
        """Return a deb822 entry for one suite, of which only the package index is fetched."""
        fields = {
            "Types": "deb",
            "URIs": self.uri,
            "Suites": suite,
            "Components": "main",
            "Targets": "Packages",
            **dict(self.options),
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items())


@dataclass(frozen=True)
class Mirror:
    """The host's Debian mirror: the archive, and the security archive where there is one."""

    archive: AptSource
    security: AptSource | None


def mirror(etc: Path = Path("/etc/apt")) -> Mirror:
    """Return the Debian mirror in the apt sources of the host.

    Third parties also use Debian's suite names. An entry with a key of its own therefore comes
    after those that Debian signs. Raises OutsideError where no entry is a Debian archive.
    """
    sources: list[AptSource] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(errors="replace")
            sources += _deb822(text) if path.suffix == ".sources" else _one_line(text)
    own = sorted((source for source in sources if _is_debian(source)), key=_is_foreign)
    security = [source for source in own if source.suites[0].endswith(("-security", "/updates"))]
    archives = [source for source in own if source not in security]
    if not archives:
        raise OutsideError(
            f"{etc}: no apt source is a Debian archive",
            "use a Debian machine, or install Docker and let the factory use it (engine = machine)",
        )
    return Mirror(archives[0], security[0] if security else None)


def host_suite() -> str:
    """Return the suite name of this machine's Debian release. Raises OutsideError."""
    try:
        return platform.freedesktop_os_release()["VERSION_CODENAME"]
    except (OSError, KeyError):
        fix = "use a Debian 12 or newer machine"
        raise OutsideError("/etc/os-release: names no Debian release", fix) from None


def _is_debian(source: AptSource) -> bool:
    suite = source.suites[0] if source.suites else ""
    for pocket in _POCKETS:
        suite = suite.removesuffix(pocket)
    known = suite in _ALIASES | _RELEASES and "main" in source.components.split()
    return known and not source.uri.startswith("cdrom:")


def _is_foreign(source: AptSource) -> bool:
    key = dict(source.options).get("Signed-By", "")
    return bool(key) and "debian-archive" not in key and not source.uri.endswith("debian")


def _deb822(text: str) -> Iterator[AptSource]:
    for block in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] += f"\n{line}"
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.strip().title().replace("Uris", "URIs")
                fields[name] = value.strip()
        if "deb" not in fields.get("Types", "").split():
            continue
        if fields.get("Enabled", "yes").lower() in ("no", "false", "0"):
            continue
        options = tuple((key, fields[key]) for key in _OPTIONS.values() if key in fields)
        suites, components = tuple(fields.get("Suites", "").split()), fields.get("Components", "")
        for uri in fields.get("URIs", "").split():
            yield AptSource(_resolved(uri), suites, options, components)


def _one_line(text: str) -> Iterator[AptSource]:
    pattern = re.compile(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", re.MULTILINE)
    for bracket, uri, suite, components in pattern.findall(text):
        pairs = dict(item.split("=", 1) for item in bracket.split() if "=" in item)
        options = tuple((_OPTIONS[key], pairs[key]) for key in pairs if key in _OPTIONS)
        yield AptSource(_resolved(uri), (suite,), options, components)


def _resolved(uri: str) -> str:
    """Return the address; of a `mirror+file:` entry, as Debian's cloud images have, the first."""
    if uri.startswith("mirror+file:"):
        path = Path(uri.removeprefix("mirror+file:").replace("///", "/"))
        lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
        uri = next((line.split()[0] for line in lines if line.strip()), uri)
    return uri.rstrip("/")
