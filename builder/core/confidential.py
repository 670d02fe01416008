"""What a secret looks like: by a file's name, or by what it holds.

Files are searched before they leave this machine (outgoing.py), in an image (where this module runs
inside the image, on Python 3.8 or newer), and in an image's layers. Tokens with a public prefix are
known by the rules of secret_rules.py, which are maintained elsewhere; PATTERNS holds the rest.
"""

from __future__ import annotations

import math
import re

try:
    from builder.core import secret_rules
except ImportError:  # inside an image, where it lies beside this file
    import secret_rules  # type: ignore[import-not-found, no-redef]

READ_AT_MOST = 1 << 20
"""Bytes of a file that is looked into; a larger one is no key and no configuration."""

# A file of this name is a secret, or is made to hold one
NAMES = {
    ".netrc": "a netrc with logins",
    "_netrc": "a netrc with logins",
    ".git-credentials": "Git's logins",
    ".pypirc": "logins for a package index",
    "kaggle.json": "a Kaggle login",
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
    "an AWS access key": rb"\bA(?:KIA|SIA)[A-Z0-9]{16}\b(?<!EXAMPLE)",
    "a Hugging Face token": rb"\bhf_[A-Za-z0-9]{34,}(?!\w)",
    "an OpenAI key": rb"\bsk-[\w-]{16,}T3BlbkFJ[\w-]{16,}",
    "a W&B key": rb"\bwandb_v1_\w{40,}|WANDB_API_KEY['\"]?[=:\s]+['\"]?[0-9a-f]{40}(?!\w)",
    "a Kaggle key": rb"\bKGAT_[0-9a-f]{32}(?!\w)|KAGGLE_KEY['\"]?[=:\s]+['\"]?[0-9a-f]{32}(?!\w)",
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
    "an AWS access key": (b"AKIA", b"ASIA"),
    "a Hugging Face token": (b"hf_",),
    "an OpenAI key": (b"T3BlbkFJ",),
    "a W&B key": (b"wandb_v1_", b"WANDB_API_KEY"),
    "a Kaggle key": (b"KGAT_", b"KAGGLE_KEY"),
    "a login for a registry": (b'"auth"',),
    "an address with a password": (b"://",),
}
_PATTERNS = {what: re.compile(pattern) for what, pattern in PATTERNS.items()}
_CONFIGURATION = re.compile(
    r"(?:\.(?:conf|cfg|ini|toml|json|ya?ml|env|list|sources)|/\.?[a-z]+rc)$"
)


_VARIABLES = re.compile(r"(?:^|/)\.env(?:rc|\.[\w.-]+)?$")
_VARIABLE = re.compile(
    rb"(?m)^[ \t]*(?:export[ \t]+)?\w*(?:API_?KEY|TOKEN|SECRET|SECRET_KEY|PASSWORD)[ \t]*="
    rb"[ \t]*[\"']?([A-Za-z0-9+/_=.-]{16,})"
)
_RULES = [
    (name, words, entropy, re.compile(pattern))
    for name, words, entropy, pattern in secret_rules.RULES
]


def secret_in(content: bytes, configuration: bool, variables: bool = False) -> str | None:
    """Return what kind of secret this text holds, if any, in UTF-8 or in UTF-16.

    configuration: whether the text is meant for settings, where every login counts. variables:
    whether it sets environment variables, of which one called PASSWORD or TOKEN counts.
    """
    halves = (content[::2], content[1::2]) if b"\0" in content else ()
    for text in (content, *halves):
        for what, pattern in _PATTERNS.items():
            if what in ONLY_IN_CONFIGURATION and not configuration:
                continue
            if any(hint in text for hint in _HINTS[what]) and pattern.search(text):
                return what
        if token := _token_in(text):
            return token
        if variables and any(_entropy(match) > 3 for match in _VARIABLE.findall(text)):
            return "a login in a variable"
    return None


def _token_in(text: bytes) -> str | None:
    """Return the rule that a token in this text keeps to, if any."""
    small = text.lower()
    for name, words, entropy, pattern in _RULES:
        if any(word in small for word in words):
            for match in pattern.finditer(text):
                if _entropy(match.group(1 if pattern.groups else 0) or b"") > entropy:
                    return f"a token ({name})"
    return None


def _entropy(token: bytes) -> float:
    """Return the Shannon entropy of a token in bits a character: that of an example is low."""
    counts = [token.count(letter) / len(token) for letter in set(token)]
    return -sum(count * math.log2(count) for count in counts)


def secret(path: str, content: bytes) -> str | None:
    """Return what kind of secret a file is, by its name or by what it holds. path: with slashes."""
    name = path.rpartition("/")[2]
    variables = bool(_VARIABLES.search(path))
    return NAMES.get(name) or secret_in(
        content, variables or bool(_CONFIGURATION.search(path)), variables
    )
