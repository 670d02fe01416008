"""Which libraries a target, an image, a folder or wheels hold, and whether a GPU runs them.

builder/devicecode reads a library and judges it; here is where the libraries come from. wheels.py,
beside this folder, reads the wheels of a lock.
"""

from builder.prove.audit.in_registry import of_registry
from builder.prove.audit.judged import Audited, Gpu, instead, passes, require
from builder.prove.audit.named import audit
from builder.prove.audit.on_engine import of_image
from builder.prove.audit.table import PackageSize, device_code, left, table

__all__ = [
    "Audited",
    "Gpu",
    "PackageSize",
    "audit",
    "device_code",
    "instead",
    "left",
    "of_image",
    "of_registry",
    "passes",
    "require",
    "table",
]
