"""Debian's archives: a mirror, the archive that keeps every version, and the host's own apt.

The mirror is the one that the settings name, else that of the host's apt, else Debian's own. The
host's apt also tells which proxies and logins it needs. Source of the formats: apt_auth.conf(5).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from builder.config import network
from builder.config.debian_packages import ARCHIVE, SECURITY
from builder.config.network import Login, read_logins, with_login
from builder.core.apt import KEYRING, Mirror, mirror
from builder.core.errors import OutsideError

if TYPE_CHECKING:
    from builder.core.settings import Settings

DOMAIN: Final = "debian.org"

_APT_SETTING: Final = re.compile(
    r"^(Acquire::(?:https?::(?!(?:.*::)?(?:CaInfo|CaPath|SslCert|SslKey|Proxy-?Auto-?Detect)\b).+"
    r"|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)) \"(.+)\";$",
    re.IGNORECASE,
)
"""Settings of apt that a build also needs to reach a mirror. Those that name a path of the host
(client certificates, programs that find a proxy) are left out: a build does not have these files.
"""


@dataclass(frozen=True)
class Archives:
    """The addresses of Debian's archives. They may hold credentials: never print or store them."""

    debian: str
    security: str
    """`debian` and `security`: of a mirror."""
    snapshot: str
    """Of the archive that keeps every version by the time it was there."""
    trusted: bool = False
    """Whether the host's apt takes the mirror's packages without a signature."""

    def urls(self, archive: str, time: str, path: str) -> tuple[str, str]:
        """Return where a file of one of ARCHIVES is: on the mirror, and where it always stays.

        time: as snapshots are named, such as 20260711T221637Z.
        """
        mirror = self.debian if archive == ARCHIVE else self.security
        return f"{mirror}/{quote(path)}", f"{self.snapshot}/{archive}/{time}/{quote(path)}"

    def sources(self, suite: str) -> tuple[str, ...]:
        """Return a sources.list for a suite, its updates and its security fixes, in this order.

        An archive need not have the last two: testing and unstable have none.
        """
        option = "[trusted=yes]" if self.trusted else f"[signed-by={KEYRING}]"
        return (
            f"deb {option} {self.debian} {suite} main\n",
            f"deb {option} {self.debian} {suite}-updates main\n",
            f"deb {option} {self.security} {suite}-security main\n",
        )


def archives(settings: Settings, apt: HostApt | None = None) -> Archives:
    """Return the archives to fetch from. apt: by default this machine's."""
    archive, security, trusted = "", "", False
    if settings.debian_mirror:
        archive = settings.debian_mirror.rstrip("/")
    elif (known := apt or host_apt()).mirror:
        own, fixes = known.mirror.archive, known.mirror.security
        archive = with_login(own.uri, known.logins)
        security = with_login(fixes.uri, known.logins) if fixes else ""
        trusted = dict(own.options).get("Trusted") == "yes"
    archive = archive or _public("deb", ARCHIVE)
    if not security and archive.endswith(f"/{ARCHIVE}"):
        security = f"{archive}-security"  # most mirrors have it beside the archive
    snapshot = settings.debian_snapshot or _public("snapshot", "archive")
    security = security or _public("deb", SECURITY)
    return Archives(archive, security, snapshot.rstrip("/"), trusted)


def build_secrets(sources: str = "") -> dict[str, bytes]:
    """Return the host's network as the secrets of a build, by their ids (config/network.py).

    sources: a sources.list that takes the place of the image's own; "" leaves that. Raises
    InputError for a file of the host that cannot be read.
    """
    return network.discover().secrets(host_apt().settings, sources)


def _public(label: str, path: str) -> str:
    # every byte is compared with the lock; over http a cache on the way can help
    return f"http://{label}.{DOMAIN}/{path}"


# --- the host's apt -------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostApt:
    mirror: Mirror | None = None
    """None on a host of another distribution."""
    settings: tuple[tuple[str, str], ...] = ()
    logins: Mapping[str, Login] = field(default_factory=dict)
    """For mirrors, never to be printed."""


def host_apt(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> HostApt:
    """Return what the host's apt knows; nothing where there is none.

    Raises InputError for a file with logins that cannot be read.
    """
    etc = root / "etc/apt"
    try:
        known = mirror(etc)
    except (OutsideError, PermissionError):
        known = None
    logins = read_logins([etc / "auth.conf", *sorted((etc / "auth.conf.d").glob("*.conf"))])
    return HostApt(known, _settings(os.environ if environ is None else environ), logins)


def _settings(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return apt's settings for the network, as `apt-config` prints them; none without apt."""
    command, env = ["apt-config", "dump", "Acquire"], dict(environ)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    matches = (_APT_SETTING.match(line) for line in done.stdout.splitlines())
    return tuple((match[1], match[2]) for match in matches if match)
