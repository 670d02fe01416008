"""`python -m tools.bench [NAME ...]`: run all benches, or the named ones."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

NAMES = ("startup", "devicecode", "image", "prune", "trainer_loop", "input_pipeline")
ASKED = ("pairs",)
"""Runs where it is named: it fetches every framework."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="NAME", help=", ".join((*NAMES, *ASKED)))
    parser.add_argument("--target", default="v100", help="the target of `image`: v100, cpu ...")
    parser.add_argument(
        "--all", action="store_true", help="`image` builds the targets of all frameworks, too"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("/var/tmp"),
        help="where `image` and `prune` put their engines and layers, `pairs` its environments",
    )
    parser.add_argument(
        "--targets", default="", help="the targets of `prune`: v100,t4 (default: every GPU)"
    )
    parser.add_argument("--only", default="", help="the `pairs` whose name holds this text")
    chosen = parser.parse_args()
    known = (*NAMES, *ASKED)
    if unknown := set(chosen.benches) - set(known):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not chosen.folder.is_dir():
        parser.error(f"--folder {chosen.folder}: there is no such folder; make it, or name another")
    for number in (signal.SIGTERM, signal.SIGINT):  # so that engines are removed, under nohup, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = {
        "image": (chosen.target, chosen.folder, chosen.all),
        "prune": (chosen.targets.split(",") if chosen.targets else (), chosen.folder),
        "devicecode": ((),),
        "pairs": (chosen.only, chosen.folder),
    }
    codes: list[int] = [
        importlib.import_module(f"tools.bench.{name}").main(*arguments.get(name, ()))
        for name in chosen.benches or NAMES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
