"""`python -m tools.bench [NAME ...]`: run all benches, or the named ones."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

NAMES = ("startup", "devicecode", "image", "prune", "trainer_loop", "input_pipeline")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--target", default="v100", help="the target of `image`: v100, cpu ...")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("/var/tmp"),
        help="where `image` and `prune` put their engines and layers",
    )
    parser.add_argument(
        "--targets", default="", help="the targets of `prune`: v100,t4 (default: every GPU)"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.benches) - set(NAMES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines are removed
    arguments = {
        "image": (chosen.target, chosen.folder),
        "prune": (chosen.targets.split(",") if chosen.targets else (), chosen.folder),
        "devicecode": ((),),
    }
    codes: list[int] = [
        importlib.import_module(f"tools.bench.{name}").main(*arguments.get(name, ()))
        for name in chosen.benches or NAMES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
