"""What signing adds to a push: all that is said of an image of the target `cpu` and of its base.

    python -m bench.signing

Read from the project's files, written, signed with a key file, and put into docker-registry on
loopback: six statements, and the two tags of cosign 2. The image itself is the smallest one; its
upload, which a push without a key does as well, is not counted. The median of ROUNDS counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from bench import load
from builder.core.project import find_root
from builder.pipeline import signing
from builder.registry import Registry
from tests.pipeline.test_signing import record
from tests.registry.server import registry
from tests.trust.signing import at, image, pair, receipt

ROUNDS = 5


def main() -> None:
    """Measure and print: seconds of the clock, and of this process's CPU."""
    root = find_root(Path(__file__).parent)
    wall, cpu = [], []
    with (
        tempfile.TemporaryDirectory(prefix="bench-signing-") as folder,
        registry(Path(folder) / "registry") as server,
        Registry(server.host) as there,
    ):
        where, ours = at(server.host), pair(Path(folder), "ours")
        made_by = record(root)
        for number in range(ROUNDS + 1):  # the first one loads modules, too
            base = (made_by.base or "").rpartition(":")[2]
            made, _ = image(there, f"image {number}"), image(there, f"base {number}", base)
            begun, used = time.perf_counter(), time.process_time()
            known = signing.about(root, made_by, "0.1.0")
            said = signing.said(there, where, made, receipt(made), known)
            signed = signing.sign(there, where, said, ours.signer, "2026-11-22")
            wall.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - used)
            assert len(signed) == 6
    for name, times in (("the first", (wall[:1], cpu[:1])), ("the median", (wall[1:], cpu[1:]))):
        clock, used = (statistics.median(one) for one in times)
        print(f"{name}: {clock:.2f} s, {used:.2f} s of them CPU ({load()})")


if __name__ == "__main__":
    main()
