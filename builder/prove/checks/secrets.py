"""Is there a secret in any layer, in the configuration or in the history?

A layer keeps what a later one deletes or overwrites. In an image of the project this is a part of
the check `contents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.core.confidential import secret_in
from builder.prove.image import Image
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check
from builder.registry import manifests


def run(image: Image) -> Answer:
    history = manifests.history(image.content.configuration, every=True)
    defects = [*in_texts(image.config, history), *_in_layers(image)]
    return defects, {"note": f"{len(image.content.layers)} layers"}


def _in_layers(image: Image) -> Iterator[Defect]:
    for secret in image.content.secrets:
        hidden = image.tree.layer.get(secret.path) != secret.layer
        yield Defect(
            f"{secret}{'; a later layer hides it' if hidden else ''}",
            "a layer keeps what a later one deletes: build it again without it, and revoke it "
            "if this image was ever pushed",
        )
    files = (path for layer in image.content.layers for path in layer.files)
    for path in sorted(path for path in files if path.endswith("/.git/HEAD")):
        yield Finding(
            f"the image holds a Git repository with its history: {path[:-5]}",
            "leave .git out of what is copied (.dockerignore), or remove it in the RUN that "
            "clones it",
        )


def in_texts(config: Mapping[str, Any], history: Sequence[str]) -> Iterator[Defect]:
    texts = {f"environment ({e.partition('=')[0]})": e for e in config.get("Env") or ()}
    for key, value in (config.get("Labels") or {}).items():
        texts[f"label {key}"] = value
    for number, line in enumerate(history):
        texts[f"history (step {number})"] = line
    for name, text in texts.items():
        kind = secret_in(text.encode(), True, variables=name.startswith("environment"))
        if kind is not None:
            yield Defect(
                f"the image's {name} holds {kind}",
                "hand it to the build as a secret (never as ARG, ENV or LABEL), revoke it",
            )


CHECK = Check.of("secrets", 1, run)
