"""What a secret looks like: by a file's name, or by what it holds.

Files are searched before they leave this machine (outgoing.py), and in an image's layers. Tokens
with a public prefix are known by the rules of secret-rules.json: those of gitleaks for vendors that
a training job logs in to, without those that guess by a variable's name or match ordinary texts.
_PATTERNS holds the rest. Of the packages on PyPI, detect-secrets has 25 such rules and none for
Hugging Face; Kaggle and W&B have no rule in either.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

RULES: Final = Path(__file__).with_name("secret-rules.json")
"""Each rule: its id, words of which one stands in each match (in small letters), the least entropy
of a token in bits a character, and the pattern, whose first group is the token."""

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
    **dict.fromkeys(("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"), "an SSH key"),
}

# What a secret looks like, wherever it is: words of which one stands in each match, as these are
# looked for in a tenth of the time, and the pattern. A key counts only with its body: programs that
# read keys name the header alone.
_PATTERNS = {
    "a private key": (
        (b"PRIVATE KEY",),
        rb"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:\\n|\s)+"
        rb"(?:[A-Za-z0-9+/=]{16}|Proc-Type|Version|Comment)",
    ),
    "a Google service account's key": (
        (b'"private_key"',),
        rb'"private_key"\s*:\s*"-----BEGIN',
    ),
    "Google Cloud credentials": ((b'"refresh_token"',), rb'"refresh_token"\s*:\s*"[^"]{10}'),
    "a Google access token": ((b"ya29.",), rb"\bya29\.[A-Za-z0-9_-]{30}"),
    "an AWS access key": ((b"AKIA", b"ASIA"), rb"\bA(?:KIA|SIA)[A-Z0-9]{16}\b(?<!EXAMPLE)"),
    "a Hugging Face token": ((b"hf_",), rb"\bhf_[A-Za-z0-9]{34,}(?!\w)"),
    "an OpenAI key": ((b"T3BlbkFJ",), rb"\bsk-[\w-]{16,}T3BlbkFJ[\w-]{16,}"),
    "a W&B key": (
        (b"wandb_v1_", b"WANDB_API_KEY"),
        rb"\bwandb_v1_\w{40,}|WANDB_API_KEY['\"]?[=:\s]+['\"]?[0-9a-f]{40}(?!\w)",
    ),
    "a Kaggle key": (
        (b"KGAT_", b"KAGGLE_KEY"),
        rb"\bKGAT_[0-9a-f]{32}(?!\w)|KAGGLE_KEY['\"]?[=:\s]+['\"]?[0-9a-f]{32}(?!\w)",
    ),
    "a login for a registry": ((b'"auth"',), rb'"auth"\s*:\s*"[A-Za-z0-9+/=]{8}'),
    "an address with a password": (
        (b"://",),
        rb"[a-z]://[^\s/:@'\"<>{}$%]+:[^\s/:@'\"<>{}$%]+@[\w.-]",
    ),
}
# The documentation and tests of packages are full of these; only a configuration counts
ONLY_IN_CONFIGURATION = {"a login for a registry", "an address with a password"}
_CONFIGURATION = re.compile(
    r"(?:\.(?:conf|cfg|ini|toml|json|ya?ml|env|list|sources)|/\.?[a-z]+rc)$"
)


_VARIABLES = re.compile(r"(?:^|/)\.env(?:rc|\.[\w.-]+)?$")
_VARIABLE = re.compile(
    rb"(?m)^[ \t]*(?:export[ \t]+)?\w*(?:API_?KEY|TOKEN|SECRET|SECRET_KEY|PASSWORD)[ \t]*="
    rb"[ \t]*[\"']?([A-Za-z0-9+/_=.-]{16,})"
)
_RUNS = re.compile(rb"[\w.~+/=:-]{12,}")
"""What a token can be part of: the shortest that a rule knows has 13 characters of these."""


def secret_in(content: bytes, configuration: bool, variables: bool = False) -> str | None:
    """Return what kind of secret this text holds, if any, in UTF-8 or in UTF-16.

    configuration: whether the text is meant for settings, where every login counts. variables:
    whether it sets environment variables, of which one called PASSWORD or TOKEN counts.
    """
    halves = (content[::2], content[1::2]) if b"\0" in content else ()
    for text in (content, *halves):
        for what, (words, pattern) in _PATTERNS.items():
            if what in ONLY_IN_CONFIGURATION and not configuration:
                continue
            if any(word in text for word in words) and re.search(pattern, text):
                return what
        if token := _token_in(text):
            return token
        if variables and any(_entropy(match) > 3 for match in _VARIABLE.findall(text)):
            return "a login in a variable"
    return None


def _token_in(text: bytes) -> str | None:
    """Return the rule that a token in this text keeps to, if any."""
    small = b"\n".join(_RUNS.findall(text)).lower()  # a tenth of the time for binary files
    for rule in _rules():
        if any(word in small for word in rule["words"]):
            for match in re.finditer(rule["pattern"], text):  # compiled once, by re itself
                if _entropy(match.group(1 if match.re.groups else 0) or b"") > rule["entropy"]:
                    return f"a token ({rule['id']})"
    return None


@cache
def _rules() -> tuple[dict[str, Any], ...]:
    rules = json.loads(RULES.read_text(encoding="utf-8"))["rules"]
    return tuple(
        {
            **rule,
            "words": [word.encode() for word in rule["words"]],
            "pattern": rule["pattern"].encode(),
        }
        for rule in rules
    )


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
