"""What this machine's indexes list of a package: builds by CUDA, wheels of a variant."""

from __future__ import annotations

import contextlib
import re
from functools import cache
from typing import Final
from urllib.parse import unquote

from builder.config.network import BuildNetwork, without_login
from builder.core.errors import OutsideError

LARGEST: Final = 64_000_000
"""Bytes of a page."""
_TIMEOUT: Final = 10.0
_FORMS: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_WHEEL: Final = re.compile(r"[\w.+%!-]+\.whl\b")
_PLATFORM: Final = re.compile(r"^(many)?linux.*x86_64$|^any$")


@cache
def wheels(name: str, host: BuildNetwork) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Return the first index that has a package, as uv asks them, and the parts of the names of its
    wheels for Linux on x86-64; "" and none where no index is configured, or none answers: uv says
    why."""
    from urllib3.exceptions import HTTPError

    if not host.indexes(name):
        return "", ()
    with (
        contextlib.suppress(HTTPError, OutsideError),
        host.client(connect=_TIMEOUT, read=_TIMEOUT) as client,
    ):
        for index in host.indexes(name):
            url = f"{index.rstrip('/')}/{name}/"
            page = client.answer("GET", url, most=LARGEST, headers={"Accept": _FORMS}, follow=True)
            if page.status == 200:
                found = _WHEEL.findall(page.data.decode("utf-8", "replace"))
                names = sorted({unquote(each).removesuffix(".whl") for each in found})
                files = (tuple(each.split("-")) for each in names)
                return without_login(index), tuple(file for file in files if _is_for_linux(file))
    return "", ()


def _is_for_linux(file: tuple[str, ...]) -> bool:
    return 5 <= len(file) <= 7 and any(map(_PLATFORM.search, file[4:]))


def builds(name: str, host: BuildNetwork) -> frozenset[str]:
    """Return the versions of a package that the index in use lists, where some are builds for one
    CUDA, by their labels; else none."""
    versions = frozenset(file[1] for file in wheels(name, host)[1] if not _variant(file))
    return versions if any("+cu" in version for version in versions) else frozenset()


def told(name: str, version: str, host: BuildNetwork) -> str:
    """Return what a person is told of the index of a locked package: which one a build for one CUDA
    comes from; and its variants of it (PEP 825), which are not taken. "" for nothing."""
    index, files = wheels(name, host)
    text = f"; {name} {version} comes from {index}" if "+" in version else ""
    if variants := sorted({_variant(file) for file in files if file[1] == version} - {""}):
        names = ", ".join(variants)
        text += f"; {index} has variants of {name} {version}, which are not taken: {names}"
    return text


def _variant(file: tuple[str, ...]) -> str:
    """Return the variant of a wheel; "" for a plain one, with a build number or without."""
    return file[-1] if len(file) - file[2][0].isdigit() > 5 else ""
