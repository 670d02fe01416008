"""Would an image run on the machines of a fleet, each with its GPU and its driver?"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from builder.audit.audited import Gpu, gpu_named, instead, known_gpus, passes
from builder.core.errors import InputError
from builder.devicecode.verdict import Audit, Verdict
from builder.facts import cuda
from builder.prove.checks import environment
from builder.prove.image import Image
from builder.prove.receipts import CheckResult, Defect

_NODE: Final = re.compile(r"\s*([\w.-]+)\s*:\s*(\d{3,4})(?:\.\d+)*\s*")

NO_CODE: Final = "no code"
TOO_OLD: Final = "driver too old"


class Node(NamedTuple):
    """A GPU, and the branch of the driver on its machine (535)."""

    gpu: Gpu
    driver: int

    def __str__(self) -> str:
        return f"{self.gpu.name} with driver {self.driver}"


def parse(text: str) -> tuple[Node, ...]:
    """Return the machines of "T4:535,H100:550". Raises InputError."""
    nodes = []
    for part in text.split(","):
        match = _NODE.fullmatch(part)
        if match is None:
            raise InputError(f"--nodes: {part.strip()!r} is no GPU:DRIVER", "write T4:535,H100:550")
        nodes.append(Node(gpu_named(match[1].lower()), int(match[2])))
    return tuple(nodes)


def judge(image: Image, nodes: tuple[Node, ...]) -> CheckResult:
    """Say which machines have a driver that is too old, or find no code in the image."""
    began, problems, works = time.monotonic(), list[Defect](), list[str]()
    for node in nodes:
        verdict = Audit(image.content.libraries).verdict(node.gpu.capability)
        if problem := _refusal(image, node, verdict):
            problems.append(problem)
        else:
            works.append(f"{node}: {verdict.status}")
    return CheckResult(
        name="nodes",
        version=1,
        passed=not problems,
        seconds=round(time.monotonic() - began, 2),
        problems=tuple(problems),
        seen={"note": "; ".join(works)},
    )


def _refusal(image: Image, node: Node, verdict: Verdict) -> Defect | None:
    """Say why the image does not run on a machine, with the verdict for its GPU; None where it
    does."""
    required = image.environment.get("NVIDIA_REQUIRE_CUDA", "")
    if not passes(verdict, allow_ptx=True):
        return Defect(f"{node}: {verdict}", instead(verdict))
    if verdict.driver and node.driver < int(verdict.driver.driver):
        what = f"driver {verdict.driver.driver} or newer (CUDA {verdict.driver.cuda})"
        return Defect(f"{node}: the image needs {what}", f"install {what}")
    if environment.admits(required, node.driver):
        return None
    return Defect(
        f"{node}: the container toolkit does not start the image there "
        f"(NVIDIA_REQUIRE_CUDA={required})",
        "install a newer driver, or take the variable out",
    )


@dataclass(frozen=True)
class Matrix:
    drivers: tuple[str, ...]
    """Ranges of drivers, the oldest first: between them an answer changes."""
    gpus: Mapping[str, tuple[str, ...]]
    """A GPU -> what it finds with a driver of each range."""

    def answer(self, gpu: str) -> str:
        """Return what a GPU finds, and the oldest drivers with which it does."""
        row = self.gpus[gpu]
        first = next((n for n, each in enumerate(row) if each not in (NO_CODE, TOO_OLD)), None)
        return NO_CODE if first is None else f"{row[first]}, {self.drivers[first]}"


def matrix(image: Image) -> Matrix:
    """Return what each known GPU finds in the image with each driver of the table; no row where
    the image holds no device code."""
    branches = sorted({int(row.driver) for row in cuda.cuda().ptx})
    rows = {}
    for gpu in known_gpus() if any(each.groups for each in image.content.libraries) else ():
        verdict = Audit(image.content.libraries).verdict(gpu.capability)
        answers = []
        for branch in branches:
            refused = _refusal(image, Node(gpu, branch), verdict)
            no = TOO_OLD if verdict.runs else NO_CODE
            answers.append(no if refused else str(verdict.status))
        rows[f"{gpu.name} ({gpu.capability})"] = answers
    columns = list(zip(*rows.values(), strict=True))
    starts = [n for n in range(len(columns)) if n == 0 or columns[n] != columns[n - 1]]
    ends = [*starts, len(columns)][1:]
    titles = (_range(branches, *ends) for ends in zip(starts, ends, strict=True))
    return Matrix(
        tuple(titles), {name: tuple(row[n] for n in starts) for name, row in rows.items()}
    )


def _range(branches: Sequence[int], start: int, end: int) -> str:
    if end == len(branches):
        return f"driver {branches[start]} and newer" if start else "any driver"
    last = branches[end - 1]
    return f"driver {branches[start]} to {last}" if start else f"driver before {branches[end]}"
