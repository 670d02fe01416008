"""`python -m bench [NAME ...]`: run all benches, or the named ones."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

NAMES = (
    "startup",
    "devicecode",
    "image",
    "hashing",
    "prune",
    "trainer_loop",
    "input_pipeline",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--target", default="v100", help="the target of `image` and `hashing`: v100, cpu ..."
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("/var/tmp"),
        help="where `image` and `prune` put their engines",
    )
    parser.add_argument(
        "--targets", default="", help="the targets of `prune`: v100,t4 (default: every GPU)"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.benches) - set(NAMES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines are removed
    return max(run(name, chosen) for name in chosen.benches or NAMES)


def run(name: str, chosen: argparse.Namespace) -> int:
    """Run one bench; 0 if it could measure everything, whether a bar is met or not."""
    if name == "startup":
        from bench import startup

        return startup.main()
    if name == "image":
        from bench import image

        return image.main(chosen.target, chosen.folder)
    if name == "hashing":
        from bench import hashing

        return hashing.main(chosen.target)
    if name == "prune":
        from bench import prune

        targets = chosen.targets.split(",") if chosen.targets else prune.TARGETS
        return prune.main(targets, chosen.folder)
    if name == "trainer_loop":
        from bench import trainer_loop

        return trainer_loop.main()
    if name == "input_pipeline":
        from bench import input_pipeline

        return input_pipeline.main()
    # devicecode is a program of its own: it parses its own command line.
    print("\n## devicecode\n", flush=True)
    return subprocess.run([sys.executable, "-m", "bench.devicecode"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
