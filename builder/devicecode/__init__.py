"""Device code: which GPUs do an image's libraries have kernels for? Read from the files alone.

    audit     every library x compute capability: native, older minor, PTX, missing
    prune     take out what one accelerator cannot run

It needs the standard library only, and no other part of the factory: the folder is also copied into
images, where the image's own Python (3.9 or newer) runs it.
"""

from .inventory import Group, Library, from_files, from_folder, from_paths
from .pruning.prune import prune
from .pruning.rule import ComputeCapability, choose, compute_capability, runs
from .verdict import Audit, Support, Verdict, as_dict, audit, carries

__all__ = [
    "Audit",
    "ComputeCapability",
    "Group",
    "Library",
    "Support",
    "Verdict",
    "as_dict",
    "audit",
    "carries",
    "choose",
    "compute_capability",
    "from_files",
    "from_folder",
    "from_paths",
    "prune",
    "runs",
]
