"""What a secret looks like: by a file's name, or by what it holds.

Files are searched before they leave this machine (outgoing.py), in an image (where this module runs
inside the image, on Python 3.8 or newer), and in an image's layers.
"""

from __future__ import annotations

import re

READ_AT_MOST = 1 << 20
"""Bytes of a file that is looked into; a larger one is no key and no configuration."""

# A file of this name is a secret, or is made to hold one
NAMES = {
    ".netrc": "a netrc with logins",
    "_netrc": "a netrc with logins",
    ".git-credentials": "Git's logins",
    ".pypirc": "logins for a package index",
    "application_default_credentials.json": "Google Cloud credentials",
    "id_rsa": "an SSH key",
    "id_dsa": "an SSH key",
    "id_ecdsa": "an SSH key",
    "id_ed25519": "an SSH key",
}

# What a secret looks like, wherever it is. A key counts only with its body: programs that read
# keys name the header alone.
PATTERNS = {
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:\\n|\s)+"
    rb"(?:[A-Za-z0-9+/=]{16}|Proc-Type|Version|Comment)",
    "a Google service account's key": rb'"private_key"\s*:\s*"-----BEGIN',
    "Google Cloud credentials": rb'"refresh_token"\s*:\s*"[^"]{10}',
    "a Google access token": rb"\bya29\.[A-Za-z0-9_-]{30}",
    "a Google API key": rb"\bAIza[A-Za-z0-9_-]{35}\b",
    "an AWS access key": rb"\bA(?:KIA|SIA)[A-Z0-9]{16}\b(?<!EXAMPLE)",
    "a GitHub token": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40})",
    "a login for a registry": rb'"auth"\s*:\s*"[A-Za-z0-9+/=]{8}',
    "an address with a password": rb"[a-z]://[^\s/:@'\"<>{}$%]+:[^\s/:@'\"<>{}$%]+@[\w.-]",
}
# The documentation and tests of packages are full of these; only a configuration counts
ONLY_IN_CONFIGURATION = {"a login for a registry", "an address with a password"}
# One of these texts stands in each match. They are looked for first, in a tenth of the time.
_HINTS = {
    "a private key": (b"PRIVATE KEY",),
    "a Google service account's key": (b'"private_key"',),
    "Google Cloud credentials": (b'"refresh_token"',),
    "a Google access token": (b"ya29.",),
    "a Google API key": (b"AIza",),
    "an AWS access key": (b"AKIA", b"ASIA"),
    "a GitHub token": (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
    "a login for a registry": (b'"auth"',),
    "an address with a password": (b"://",),
}
_PATTERNS = {what: re.compile(pattern) for what, pattern in PATTERNS.items()}
_CONFIGURATION = re.compile(
    r"(?:\.(?:conf|cfg|ini|toml|json|ya?ml|env|list|sources)|/\.?[a-z]+rc)$"
)


def secret_in(content: bytes, configuration: bool) -> str | None:
    """Return what kind of secret this text holds, if any, in UTF-8 or in UTF-16.

    configuration: whether the text is meant for settings, where every login counts.
    """
    halves = (content[::2], content[1::2]) if b"\0" in content else ()
    for text in (content, *halves):
        for what, pattern in _PATTERNS.items():
            if what in ONLY_IN_CONFIGURATION and not configuration:
                continue
            if any(hint in text for hint in _HINTS[what]) and pattern.search(text):
                return what
    return None


def secret(path: str, content: bytes) -> str | None:
    """Return what kind of secret a file is, by its name or by what it holds. path: with slashes."""
    name = path.rpartition("/")[2]
    return NAMES.get(name) or secret_in(content, bool(_CONFIGURATION.search(path)))
