"""Is what the image's environment names in the image, and does TensorFlow know its flags?

Request: {"paths": ["/usr/local/cuda"], "bundles": ["/etc/ssl/certs/ca-certificates.crt"],
          "flags": ["XLA_FLAGS"]}
`paths` and `bundles` have to be there; a bundle has to hold a certificate. `flags`: variables whose
flags TensorFlow reads when it begins to compile, and ends if it does not know one. A library that
LD_PRELOAD names and that is missing the loader itself reports on stderr, when this program starts.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH110, PTH123
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

SECONDS = 300
COMPILE = """
import tensorflow
print(tensorflow.function(lambda x: x + 1, jit_compile=True)(tensorflow.constant(1.0)))
"""
UNKNOWN = re.compile(r"Unknown flags? in (\w+): (.*)")


def probe(request: dict[str, Any], program: str = COMPILE) -> dict[str, Any]:
    """Return what does not exist, bundles without a certificate, and flags that are not known.

    program: what reads the flags; a test gives another one.
    """
    bundles = request.get("bundles", ())
    missing = [path for path in (*request["paths"], *bundles) if not os.path.exists(path)]
    empty = [path for path in bundles if path not in missing and not _certificates(path)]
    seen = {"missing": missing, "empty": empty}
    problems = list(unknown(program)) if request.get("flags") else []
    return {"problems": problems, "seen": seen}


def _certificates(path: str) -> bool:
    with open(path, "rb") as bundle:
        return b"-----BEGIN " in bundle.read()


def unknown(program: str) -> list[dict[str, str]]:
    """Return the flags on which TensorFlow ends: a function is compiled for the CPU."""
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []
    match = UNKNOWN.search(done.stdout.decode(errors="replace"))
    if done.returncode == 0 or not match:
        return []  # an image without TensorFlow: nothing reads them
    message = f"{match.group(1)}: this TensorFlow does not know {match.group(2).strip()}"
    return [
        {
            "message": f"{message}: it ends when it begins to compile",
            "fix": "correct the flag, or take it out: flags come and go with releases",
        }
    ]


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
