"""Does a .pth file run code at every start of Python that nobody knows?"""

from __future__ import annotations

import re
from typing import Final

from builder.image.plan import HOOK
from builder.prove.image import Image
from builder.prove.receipts import Defect
from builder.prove.suite import Answer, Check

_KNOWN_HOOKS: Final = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = [^;]*; "
    r"enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?;? *"
    r"|import os; exec\('try: __import__\(\"coloredlogs\"\)\.auto_install\(\) if os\.environ\.get\("
    r"\"COLOREDLOGS_AUTO_INSTALL\"\) else None\\nexcept ImportError: pass'\)"
    r"|import _virtualenv|import _cuda_bindings_redirector|import (\w+); \2\.install\(\)"
    r"|import sys, types, os;has_mfs = (?!.*(exec|eval|open|system|base64|subprocess|urllib)).*"
    rf"|import {HOOK}; {HOOK}\.announce\(\"\d+\.\d\"\)"
)
"""Lines of setuptools, coloredlogs (ONNX Runtime's), virtualenv, cuda-bindings, editable installs,
namespaces, and pruned images of the factory (builder/devicecode/pruning/announce.py)."""


def run(image: Image) -> Answer:
    hooks = image.tree.hooks
    defects = []
    for path, line in sorted(hooks.items()):
        unknown = [each for each in line.splitlines() if not _KNOWN_HOOKS.fullmatch(each.strip())]
        if unknown:
            what = f"{path} runs code at every start of Python: {unknown[0][:200]}"
            defects.append(Defect(what, "remove it, or the package that brings it"))
    note = f"{len(hooks)} known .pth hooks" if hooks else "no .pth file runs code"
    return defects, {"note": note}


CHECK = Check.of("pth", 1, run)
