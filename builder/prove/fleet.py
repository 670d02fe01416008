"""Would an image run on the machines of a fleet, each with its GPU and its driver?"""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple

from builder.audit.audited import Gpu, gpu_named, instead, passes
from builder.core.errors import InputError
from builder.devicecode.verdict import Audit
from builder.prove.checks import environment
from builder.prove.image import Image
from builder.prove.receipts import CheckResult, Defect

_NODE: Final = re.compile(r"\s*([\w.-]+)\s*:\s*(\d{3,4})(?:\.\d+)*\s*")


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
        needed = verdict.driver
        required = image.environment.get("NVIDIA_REQUIRE_CUDA", "")
        if not passes(verdict, allow_ptx=True):
            problems.append(Defect(f"{node}: {verdict}", instead(verdict)))
        elif needed and node.driver < int(needed.driver):
            what = f"driver {needed.driver} or newer (CUDA {needed.cuda})"
            problems.append(Defect(f"{node}: the image needs {what}", f"install {what}"))
        elif not environment.admits(required, node.driver):
            problems.append(
                Defect(
                    f"{node}: the container toolkit does not start the image there "
                    f"(NVIDIA_REQUIRE_CUDA={required})",
                    "install a newer driver, or take the variable out",
                )
            )
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
