"""Where Debian's packages are fetched from: a mirror, and the archive that keeps every version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from builder.core.network import DEBIAN_KEYRING

if TYPE_CHECKING:
    from builder.core.network import BuildNetwork
    from builder.core.settings import Settings

DOMAIN: Final = "debian.org"
ARCHIVE, SECURITY = "debian", "debian-security"
ARCHIVES: Final = (ARCHIVE, SECURITY)


@dataclass(frozen=True)
class Archives:
    """The addresses of Debian's archives. They may hold credentials: never print or store them.

    debian, security: of a mirror. snapshot: of the archive that keeps every version by the time it
    was there.
    """

    debian: str
    security: str
    snapshot: str

    def places(self, archive: str, time: str, path: str) -> tuple[str, str]:
        """Where a file of one of ARCHIVES is: on the mirror, and where it always stays.

        time: as snapshots are named, such as 20260711T221637Z.
        """
        mirror = self.debian if archive == ARCHIVE else self.security
        return f"{mirror}/{quote(path)}", f"{self.snapshot}/{archive}/{time}/{quote(path)}"


def archives(settings: Settings, host: BuildNetwork) -> Archives:
    """The mirror that the settings name, else that of the host's apt, else Debian's own."""
    archive, security = "", ""
    if settings.debian_mirror:
        archive = settings.debian_mirror.rstrip("/")
    elif host.mirror:
        archive = host.with_login(host.mirror.archive.uri)
        security = host.with_login(host.mirror.security.uri) if host.mirror.security else ""
    archive = archive or _public("deb", ARCHIVE)
    if not security and archive.endswith(f"/{ARCHIVE}"):
        security = f"{archive}-security"  # most mirrors have it beside the archive
    snapshot = settings.debian_snapshot or _public("snapshot", "archive")
    return Archives(archive, security or _public("deb", SECURITY), snapshot.rstrip("/"))


def sources(archives: Archives, suite: str, host: BuildNetwork) -> tuple[str, ...]:
    """The lines of a sources.list for a suite, its updates and its security fixes, in this order.

    An archive need not have the last two: testing and unstable have none.
    """
    trusted = host.mirror and dict(host.mirror.archive.options).get("Trusted") == "yes"
    how = "[trusted=yes]" if trusted else f"[signed-by={DEBIAN_KEYRING}]"
    return tuple(
        f"deb {how} {uri} {suite}{pocket} main\n"
        for uri, pocket in (
            (archives.debian, ""),
            (archives.debian, "-updates"),
            (archives.security, "-security"),
        )
    )


def _public(label: str, path: str) -> str:
    # every byte is compared with the lock; over http a cache on the way can help
    return f"http://{label}.{DOMAIN}/{path}"
