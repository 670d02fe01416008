"""How fast the audit is, compared with NVIDIA's cuobjdump on the same files, in one run.

    python -m tools.bench.devicecode [FOLDER]

FOLDER is a site-packages folder with the CUDA libraries in it. Without FOLDER, the bench installs
tensorflow[and-cuda]==2.21.0 (about 6 GB) into a temporary folder and removes it afterwards.
The first run of each side reads the files from disk and does not count. The bench compares what
the two sides found in each library, and fails if they differ.

    python -m tools.bench.devicecode --wheels REQUIREMENT...

compares both sides on these wheels, one after the other, without measuring. `--cuobjdump FILE`
takes another version of cuobjdump. Debian's package nvidia-cuda-toolkit has the older ones.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from builder.devicecode import inventory
from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import COMPILED, ELF, LINK_INPUT, PTX
from builder.devicecode.verdict import Audit

STACK = "tensorflow[and-cuda]==2.21.0"
CUOBJDUMP = "nvidia-cuda-cuobjdump==13.5.37"
DEVICES = ("7.0", "7.5", "8.0", "8.9", "9.0")
RUNS = 5
T = TypeVar("T")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line. words: its arguments; None for those of this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="site-packages with the libraries")
    parser.add_argument(
        "--wheels", nargs="+", default=(), help="wheels to compare, as pip has them"
    )
    parser.add_argument("--cuobjdump", type=Path, help=f"the program; by default {CUOBJDUMP}")
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="devicecode-", dir="/var/tmp") as name:
        temporary = Path(name)
        folder = chosen.folder or install(STACK, temporary / "stack")
        cuobjdump = chosen.cuobjdump or newest_cuobjdump(temporary / "tools")
        if chosen.wheels:
            return (
                sum(wheel(requirement, cuobjdump, temporary) for requirement in chosen.wheels) and 1
            )
        return compare(folder, cuobjdump)


def install(requirement: str, folder: Path, *options: str) -> Path:
    """Install a requirement for Linux on x86-64 into `folder`; that folder."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", *options]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11"]
    subprocess.run([*command, "--target", str(folder), requirement], check=True)
    return folder


def newest_cuobjdump(folder: Path) -> Path:
    """Install CUOBJDUMP into `folder`; the program."""
    (program,) = install(CUOBJDUMP, folder, "--no-deps").rglob("bin/cuobjdump")
    program.chmod(0o755)
    return program


def wheel(requirement: str, cuobjdump: Path, temporary: Path) -> int:
    """Compare both sides on one wheel and print a row; how many libraries they read differently."""
    with tempfile.TemporaryDirectory(dir=temporary) as name:
        folder = install(requirement, Path(name), "--no-deps")
        libraries = inventory.of_folder(folder)
        read = {library.path: seen_by_us(library) for library in libraries if not library.broken}
        listed = {path: seen_by_nvidia(cuobjdump, path) for path in read}
        different = [path for path in read if read[path] != listed[path]]
        entries = sum(sum(counter.values()) for counter in listed.values())
        doubts = [
            f"{Path(library.path).name}: {library.broken or library.doubt}"
            for library in libraries
            if library.broken or library.doubt
        ]
        size = sum(library.size for library in libraries) / 1e6
        print(
            f"{requirement:<36}{len(libraries):>5} libraries{size:>8,.0f} MB{entries:>9,} entries"
            f"{len(different):>4} differ{len(doubts):>4} in doubt", flush=True
        )  # fmt: skip
        for path in different:
            here_only, there_only = read[path] - listed[path], listed[path] - read[path]
            print(f"  {Path(path).name}: {here_only} only here, {there_only} only there")
        for line in doubts:
            print(f"  {line}")
    return len(different)


def compare(folder: Path, cuobjdump: Path) -> int:
    """Measure both sides and print them; 1 if they read a library differently."""
    ours: list[Time] = []
    for _ in range(RUNS + 1):
        spent, audit = timed(lambda: judged(folder))
        ours.append(spent)
    with_code = [
        library
        for library in audit.libraries
        if any(group.section in (COMPILED, LINK_INPUT) for group in library.groups)
    ]
    read = {library.path: seen_by_us(library) for library in with_code}
    theirs: list[Time] = []
    for _ in range(2):
        spent, listed = timed(lambda: {path: seen_by_nvidia(cuobjdump, path) for path in read})
        theirs.append(spent)
    different = [path for path in read if read[path] != listed[path]]
    here = sorted(ours[1:])[RUNS // 2]
    there = theirs[1]
    size = sum(library.size for library in audit.libraries)
    entries = sum(sum(counter.values()) for counter in read.values())
    print(
        f"{size / 1e6:,.0f} MB in {len(audit.libraries)} libraries, {len(DEVICES)} devices judged"
    )
    print(f"{'':<30}{'wall s':>8}{'CPU s':>8}")
    print(f"{f'audit (median of {RUNS})':<30}{here.wall:>8.2f}{here.cpu:>8.2f}")
    print(f"{f'cuobjdump ({len(read)} libraries)':<30}{there.wall:>8.2f}{there.cpu:>8.2f}")
    print(f"{'ratio':<30}{there.wall / here.wall:>8.1f}{there.cpu / here.cpu:>8.1f}")
    print(f"entries that both read: {entries:,}, libraries that differ: {len(different)}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for path in different:
        here_only, there_only = read[path] - listed[path], listed[path] - read[path]
        print(f"  {path}: {here_only} only here, {there_only} only there")
    return 1 if different else 0


def judged(folder: Path) -> Audit:
    """The audit of a folder, judged for each of DEVICES."""
    audit = Audit(inventory.of_folder(folder))
    for device in DEVICES:
        _ = audit.verdict(device).status
    return audit


class Time(NamedTuple):
    """Seconds of a call; `cpu` is user and system time, with that of child processes."""

    wall: float
    cpu: float


def timed(work: Callable[[], T]) -> tuple[Time, T]:
    """Call `work`; how long it took, and its result."""
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    result = work()
    return Time(time.perf_counter() - wall, sum(os.times()[:4]) - cpu), result


def seen_by_us(library: Library) -> Counter[str]:
    """How often the audit found each kind of device code, in the names that cuobjdump prints."""
    counts: Counter[str] = Counter()
    for group in library.groups:
        if group.section in (COMPILED, LINK_INPUT):
            for target in group.targets:
                # cuobjdump -lelf leaves out the suffix f.
                if target.kind == ELF:
                    suffix = target.suffix.replace("f", "")
                    counts[f"sm_{target.architecture}{suffix}.cubin"] += group.containers
                elif target.kind == PTX:
                    counts[f"sm_{target.architecture}{target.suffix}.ptx"] += group.containers
    return counts


def seen_by_nvidia(cuobjdump: Path, path: str) -> Counter[str]:
    """How often cuobjdump lists each kind of device code."""
    names: list[str] = []
    for option, kind in (("-lelf", "cubin"), ("-lptx", "ptx")):
        command = [str(cuobjdump), "-all", option, path]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        names += re.findall(rf"\.(sm_\w+\.{kind})", run.stdout)
    return Counter(names)


if __name__ == "__main__":
    sys.exit(main())
