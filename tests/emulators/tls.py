"""A certificate that no one trusts, and servers on loopback that show it."""

from __future__ import annotations

import ssl
import subprocess
from http.server import HTTPServer
from pathlib import Path


def certificate(folder: Path, name: str = "DNS:registry.test") -> tuple[Path, Path]:
    """A certificate for a name or an address (IP:...), of no known CA, and its key:
    tls.crt and tls.key, as Kubernetes names them."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=tests", "-addext", f"subjectAltName={name}"),
            *("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "tls.crt", folder / "tls.key"


def encrypt(server: HTTPServer, certificate: tuple[Path, Path]) -> None:
    """Let a server speak TLS from now on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
