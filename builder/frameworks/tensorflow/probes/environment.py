"""Is what the image's environment names in the image?

Request: {"paths": ["/usr/local/cuda"]}
The answer lists those that are missing. A library that LD_PRELOAD names and that is missing the
loader itself reports on stderr, when this program starts.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH110
from __future__ import annotations

import json
import os
import sys
from typing import Any


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Return the paths that do not exist."""
    missing = [path for path in request["paths"] if not os.path.exists(path)]
    return {"problems": [], "seen": {"missing": missing}}


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
