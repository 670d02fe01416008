"""Is each library in the image that its frameworks are linked to, and that they open by name?

The suites of our own images ask their frameworks themselves (builder/prove/suites.py).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import asdict
from typing import Final

from builder.devicecode import linking
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_MODULE: Final = re.compile(
    r"/(site|dist)-packages/(.*(\.cpython-3\d+-x86_64-linux-gnu|\.abi3|/_pywrap_[a-z_]+)"
    r"|jaxlib/[\w/]+|jax_plugins/\w+/\w+|jax_\w+_plugin/\w+)\.so$"
)
"""A module that Python imports, or a plugin that it opens."""


def run(image: Image) -> Answer:
    """Look for each library that a framework is linked to, and that it opens by name. Which one
    ld.so takes, a run shows."""
    modules = [library for library in image.content.libraries if _MODULE.search(library.path)]
    if not modules and not image.frameworks:
        raise NotThereError("no compiled module of Python")
    by_name = {library.name: library for library in image.content.libraries}
    names = {posixpath.basename(path) for path in image.tree.files if image.tree.resolve(path)}
    defects: list[Defect] = []
    for module in modules:
        lacking = linking.missing(module, by_name, names)
        if lacking:
            needs = "; ".join(f"{asking.name} needs {name}" for name, asking in lacking.items())
            of_framework = any(image.is_module(module.path, each) for each in image.frameworks)
            kind = Defect if of_framework else Finding
            defects.append(
                kind(
                    f"{module.path} cannot be loaded: {needs}, and the image lacks it",
                    "install what brings it (apt-file search), or take the package out",
                )
            )
    loaded = len(modules) - len(defects)
    defects += _opened(image) if image.gpu else []
    note = f"{loaded} modules find what they are linked to; ld.so's way was not followed"
    return defects, {"note": note}


def _opened(image: Image) -> list[Defect]:
    """Beside a framework that uses the GPU, another one may feed it from the CPU."""

    def is_there(name: str) -> bool:
        return any(image.tree.resolve(path) for path in image.tree.named(name))

    said = [list(each.opened(image.content.libraries, is_there)) for each in image.frameworks]
    one_works = any(all(isinstance(defect, Finding) for defect in each) for each in said)
    return [Finding(**asdict(defect)) if one_works else defect for each in said for defect in each]


CHECK = Check.of("loader", 2, run)
