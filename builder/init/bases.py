"""What the name of a published image tells: its framework, and sometimes the release.

The forms are those of the frameworks' own images, Vertex AI's (`pytorch-gpu.2-4.py310`), Google's
and AWS's deep learning containers, Hugging Face's and axolotl's.
"""

from __future__ import annotations

import re
from typing import Final

from builder.facts import frameworks
from builder.facts.frameworks import Framework

_BETWEEN: Final = r"(?:[-_.](?:gpu|cpu|tpu|xla|training|inference|release|cu\d+|cuda\d*))*"


def of(image: str) -> tuple[Framework, str] | None:
    """Return the framework of an image and its release or minor release, "" where the name does not
    tell it; None for an image that names no framework."""
    name, _, tag = re.sub(r"@.*", "", image).rpartition("/")[2].partition(":")
    path = re.sub(r"[:@][^/]*$", "", image).lower()
    named = re.split(r"[/._-]", path.partition("/")[2] or path)
    tagged = re.split(r"[._-]|(?<=[a-z])(?=\d)", tag.lower())  # horovod:0.20.0-pytorch1.6.0
    for framework in frameworks.every():
        own = framework.distributions | framework.aliases
        if own & {*named, *tagged, name.lower()}:
            return framework, _release(framework, own, name.lower(), tag.lower())
        if framework.needed_by & {*named, name.lower()}:
            return framework, _behind_cuda(framework, tag.lower())
    return None


def _release(framework: Framework, own: frozenset[str], name: str, tag: str) -> str:
    """Return the release that an image with the framework's name tells."""
    names = "|".join(sorted(map(re.escape, own), key=len, reverse=True))
    for text in (name, tag):  # pytorch-gpu.2-4.py310, huggingface-pytorch-training-cu121.2-3
        for match in re.finditer(rf"(?:{names}){_BETWEEN}[-_.]?(\d+)[-.](\d+)(?:\.(\d+))?", text):
            found = ".".join(filter(None, match.groups()))
            if _plausible(framework, found):
                return found
    if found := _behind_cuda(framework, tag):
        return found
    begins = re.match(r"v?(\d+\.\d+(?:\.\d+)?)(?![a-z0-9.])", tag)
    first = re.split(r"[-_.]", name)[0]
    leads = name in own or first in own or re.search(rf"(?:{names})-(?:training|gpu)", name)
    return begins[1] if begins and leads and _plausible(framework, begins[1]) else ""


def _behind_cuda(framework: Framework, tag: str) -> str:
    """Return the release of a tag such as main-py3.11-cu124-2.5.1."""
    match = re.search(r"-cu\d+-(\d+\.\d+\.\d+)$", tag)
    return match[1] if match and _plausible(framework, match[1]) else ""


def _plausible(framework: Framework, release: str) -> bool:
    """Return whether a number can be a release: NVIDIA counts its images by months (24.10)."""
    newest = framework.releases()[-1]
    return int(release.split(".")[0]) <= int(newest.split(".")[0])
