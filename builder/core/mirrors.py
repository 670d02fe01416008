"""The Debian mirrors that the host's apt uses, and the Debian release that the host runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import OutsideError

_ALIASES = {"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid"}
_RELEASES = {"buster", "bullseye", "bookworm", "trixie", "forky", "duke"}
_POCKETS = ("-updates", "-security", "-backports", "-proposed-updates", "/updates")
_OPTIONS = {
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

    def stanza(self, suite: str) -> str:
        """A deb822 entry for one suite, of which only the package index is fetched."""
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


def _deb822(text: str) -> Iterator[tuple[str, AptSource]]:
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
        options = tuple((k, fields[k]) for k in _OPTIONS.values() if k in fields)
        for uri in fields.get("URIs", "").split():
            source = AptSource(uri, tuple(fields.get("Suites", "").split()), options)
            yield fields.get("Components", ""), source


def _one_line(text: str) -> Iterator[tuple[str, AptSource]]:
    pattern = re.compile(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", re.M)
    for raw, uri, suite, components in pattern.findall(text):
        given = dict(item.split("=", 1) for item in raw.split() if "=" in item)
        options = tuple((_OPTIONS[k], v) for k, v in given.items() if k in _OPTIONS)
        yield components, AptSource(uri, (suite,), options)


def _resolved(uri: str) -> str:
    """The first mirror of a `mirror+file:` entry, which Debian's cloud images have."""
    if not uri.startswith("mirror+file:"):
        return uri
    for line in Path(uri.removeprefix("mirror+file:").replace("///", "/")).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            return line.split()[0]
    return uri


def mirror(etc: Path = Path("/etc/apt")) -> Mirror:
    """The Debian mirror in the apt sources of the host.

    Third parties also use Debian's suite names. An entry with a key of its own therefore comes
    after those that Debian signs. Raises OutsideError where no entry is a Debian archive.
    """
    found: list[tuple[str, AptSource]] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += _deb822(text) if path.suffix == ".sources" else _one_line(text)
    archives: list[AptSource] = []
    security: list[AptSource] = []
    for components, source in found:
        suite = source.suites[0] if source.suites else ""
        name = suite
        for pocket in _POCKETS:
            name = name.removesuffix(pocket)
        if name not in _ALIASES | _RELEASES or "main" not in components.split():
            continue
        if source.uri.startswith("cdrom:"):
            continue
        source = AptSource(_resolved(source.uri).rstrip("/"), source.suites, source.options)
        (security if suite.endswith(("-security", "/updates")) else archives).append(source)

    def foreign(source: AptSource) -> bool:
        key = dict(source.options).get("Signed-By", "")
        return bool(key) and "debian-archive" not in key and not source.uri.endswith("debian")

    if not archives:
        raise OutsideError(
            f"{etc}: no apt source is a Debian archive",
            "use a Debian machine, or install Docker and let the factory use it (engine = machine)",
        )
    archives.sort(key=foreign)
    security.sort(key=foreign)
    return Mirror(archives[0], security[0] if security else None)


def host_suite(os_release: Path = Path("/etc/os-release")) -> str:
    """The suite name of this machine's Debian release. Raises OutsideError where it has none."""
    text = os_release.read_text() if os_release.exists() else ""
    match = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', text, re.M)
    if match:
        return match[1]
    raise OutsideError(f"{os_release}: names no Debian release", "use a Debian 12 or newer machine")
