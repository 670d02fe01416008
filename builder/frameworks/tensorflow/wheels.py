"""What the tables say that wheels carry, compared with what was read of the wheels.

tensorflow.yaml says it of each release of TensorFlow, builder/facts/cuda.yaml of each cuDNN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import COMPILED
from builder.devicecode.verdict import Audit, carries
from builder.frameworks.tensorflow import releases

if TYPE_CHECKING:
    from builder.config.stack import Stack


def contradictions(libraries: Audit, stack: Stack) -> Iterator[str]:
    """Yield a line for each fact about these versions that the tables and the wheels say
    differently."""
    tables = releases.tables()
    with_code = [
        library
        for library in libraries.libraries
        if COMPILED in {group.section for group in library.groups} - library.stub_sections
    ]
    release = next(r for r in tables.releases if stack.tensorflow in r.versions)
    targets = set(release.capabilities)
    targets |= {target.replace("compute_", "sm_") for target in targets}
    own = [library for library in with_code if library.package == "tensorflow"]
    carried = set().union(*map(_carried, own))
    yield from _differences(
        f"tensorflow.yaml: TensorFlow {stack.tensorflow}", targets, own, carried
    )
    cudnn = [library for library in with_code if "cudnn" in library.package]
    if not cudnn:
        return
    version = cudnn[0].version
    rows = [row for row in tables.cudnn if _numbers(row.since) <= _numbers(version)]
    if not rows:
        yield f"cuda.yaml: no row knows cuDNN {version}"
        return
    targets = {f"sm_{capability.replace('.', '')}" for capability in rows[-1].capabilities}
    common = set.intersection(*map(_carried, cudnn))
    machine_code = {target for target in common if target.startswith("sm_")}
    yield from _differences(f"cuda.yaml: cuDNN {version}", targets, cudnn, machine_code)


def _differences(
    row: str, targets: set[str], libraries: list[Library], carried: set[str]
) -> Iterator[str]:
    """Yield the targets that a row names and the libraries lack, and those that it leaves out."""
    if not libraries:
        yield f"{row}: the wheels hold no library of it with device code"
        return
    if lacking := sorted(targets - carried):
        without = next(library for library in libraries if targets - _carried(library))
        yield f"{row} is said to carry {', '.join(lacking)}: not in {without.name}"
    if unnamed := sorted(carried - targets):
        yield f"{row} carries {', '.join(unnamed)}, of which the table says nothing"


def _carried(library: Library) -> set[str]:
    return set(carries(library, COMPILED))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
