"""Do the versions in the image fail together, though each fits the others by its metadata?"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from packaging.version import Version

from builder.facts import known_bad
from builder.prove.checks import contents
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

_LIBRARY: Final = re.compile(r"lib(cublas|cudart|cudnn|nccl)\.so\.(\d+(?:\.\d+){2,3})")
"""A file whose name has its whole version, as Debian's packages and NVIDIA's images install it."""


def run(image: Image) -> Answer:
    packages = {name: max(each) for name, each in contents.packages(image).items()}
    files = [_LIBRARY.fullmatch(posixpath.basename(path)) for path in image.tree.files]
    named = sorted((m[1], Version(m[2])) for m in files if m)
    if not packages and not named:
        raise NotThereError("no Python packages, and no library of CUDA's")
    capability = str(image.gpu.capability) if image.gpu else None
    found = known_bad.find(packages, capability, {name: str(v) for name, v in named})
    defects = [Defect(str(each), each.row.fix) for each in found if each.row.fails]
    told = [Finding(str(each), each.row.fix) for each in found if not each.row.fails]
    # a finding would refuse an image of the factory
    seen = {"note": f"{len(known_bad.rows())} known combinations", "told": [str(f) for f in told]}
    return [*defects, *([] if image.is_ours else told)], seen


CHECK = Check.of("combinations", 1, run)
