"""What the check `compile` says of steps that others ran, beside what they saw: pairs.yaml.

    python -m tools.bench pairs [--only TEXT]     the pairs whose name or framework holds the text

The check's own code asks each: `CompileTarget` makes the request, the framework's hook runs in a
Python of this machine in place of an image's, and `judge` reads the answer. The packages come into
environments below --folder once: gigabytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast

import yaml
from pydantic import TypeAdapter

from builder import contract
from builder.facts import devices, frameworks
from builder.facts.devices import GIB, Device
from builder.facts.frameworks import Part
from builder.prove.checks import compile as compiling
from builder.prove.image import NotThereError
from builder.prove.judge import Run
from builder.prove.session import Sandbox, hook_files
from tools import bench

TABLE, PROGRAMS = Path(__file__).with_suffix(".yaml"), Path(__file__).parent / "programs"
SECONDS = 3600
"""How long a pair may take, beside other work too. The check itself has two minutes."""
CUDNN = "9.10.2"


@dataclass(frozen=True)
class Pair:
    """A step that others ran."""

    name: str
    framework: str
    program: str
    device: str
    """A row of the devices' table."""
    fits: bool
    """Whether it did."""
    source: str
    given: Mapping[str, Any] = field(default_factory=dict)
    memory: float = 0.0
    """GiB of a card that is not in the table."""
    peak: float = 0.0
    """GiB that they measured, 0 where they did not."""
    of: Literal["allocated", "first", "program", "device", ""] = ""
    beside: float = 0.0
    """GiB of it that a program takes which does nothing, where they measured that."""
    release: str = ""
    """Of the framework, where today's is not asked: what a compiler keeps differs by release."""

    @property
    def environment(self) -> str:
        return f"{self.framework} {self.release}".rstrip()

    @property
    def on(self) -> Device:
        """The device, or the one that stands for another card."""
        row = devices.devices()[self.device]
        return replace(row, memory=int(self.memory * GIB)) if self.memory else row


@dataclass(frozen=True)
class Said:
    """What the check said of a pair. Its numbers are GiB, 0 where it has none."""

    fits: bool | None
    """None: it does not know."""
    needs: float = 0.0
    allocated: float = 0.0
    first: float = 0.0
    """What tensors hold before a second step, with which the optimizer's state is there."""
    words: str = ""
    seconds: float = 0.0

    def peak(self, pair: Pair) -> float:
        """Return the number that they measured, as the check says it."""
        if pair.of in ("allocated", "first"):
            return self.first if pair.of == "first" else self.allocated
        return self.needs + (pair.beside or pair.on.taken / GIB if pair.of == "device" else 0.0)

    def error(self, pair: Pair) -> float | None:
        """Return by which part of theirs our peak is larger."""
        return self.peak(pair) / pair.peak - 1 if pair.peak and self.needs else None


def read() -> tuple[list[Pair], Mapping[str, list[str]]]:
    """Return the pairs, and what each environment holds."""
    content = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    rows = [
        {("given" if key == "with" else key): row[key] for key in row} for row in content["pairs"]
    ]
    pairs = TypeAdapter(list[Pair]).validate_python(rows)
    if unknown := {pair.source for pair in pairs} - set(content["sources"]):
        raise ValueError(f"no such source: {', '.join(sorted(unknown))}")
    return pairs, content["environments"]


@dataclass(frozen=True)
class Python:
    """A Python of this machine, which stands for an image's (builder.prove.session.Sandbox)."""

    folder: Path
    """Of its environment."""

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "python"

    @cached_property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def make(self, requirements: Sequence[str]) -> None:
        """Make the environment, if it is not there as a whole."""
        if not (done := self.folder / "whole").is_file():
            uv = (sys.executable, "-m", "uv")
            bench.command(*uv, "venv", "--clear", "--python", sys.executable, self.folder)
            bench.command(*uv, "pip", "install", "--python", self.program, *requirements)
            done.touch()

    def start_with(
        self,
        hook: str,
        variable: str,
        request: Mapping[str, Any],
        arguments: Sequence[str],
        entrypoint: Sequence[str] | None = None,
        imports: Sequence[str] = (),
        part: Part | None = None,
        environment: Mapping[str, str] | None = None,
        programs: Mapping[str, bytes] | None = None,  # noqa: ARG002 - a pair's are started once
    ) -> Run:
        """Run a program with a hook, as Sandbox.start_with does, until its step is answered."""
        plugin = {"plugin": str(self.packages / part.path)} if part else {}
        with tempfile.TemporaryDirectory() as folder:
            for path, content in hook_files(hook, imports).items():
                place = Path(folder, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            environment = {
                **os.environ,
                **(environment or {}),
                "PYTHONPATH": f"{folder}:{self.packages}",
                "TPU_SKIP_MDS_QUERY": "1",
                "CUDA_VISIBLE_DEVICES": "",
                variable: json.dumps({**request, **plugin}),
            }
            return self._run([str(self.program), *(entrypoint or ()), *arguments], environment)

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> Run:
        began, tail, answer = time.monotonic(), [], None
        process = subprocess.Popen(
            ["nice", "-n", "5", *command], env=dict(environment), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        limit = threading.Timer(SECONDS, process.kill)
        limit.start()
        with process:
            for line in cast("Iterator[str]", process.stdout):
                if fields := contract.fields(line):
                    answer = fields
                    process.kill()  # what comes is a search for the largest batch
                    break
                tail.append(line)
        limit.cancel()
        seconds = time.monotonic() - began
        code = 0 if answer else process.returncode
        return Run(
            code, seconds, tail=tuple(tail[-200:]), answer=answer, timed_out=seconds >= SECONDS
        )


def ask(pair: Pair, python: Python) -> Said:
    """Ask the check of a pair."""
    device = pair.on
    batch = int(pair.given.get("batch", 0)) if frameworks.of(pair.framework).compiler else 0
    target = compiling.CompileTarget(device, pair.framework, cudnn=CUDNN, batch=batch)
    program = str(PROGRAMS / f"of_{pair.framework}.py")
    arguments = [pair.program, json.dumps(pair.given)]
    run = target.compile(cast("Sandbox", python), arguments, [program])
    try:
        defects, seen = compiling.judge(run, device)
    except NotThereError as error:
        return Said(None, words=str(error) + "".join(run.tail[-3:]), seconds=run.seconds)
    needs = seen.get("needs", 0) / GIB
    words = defects[0].message if defects else seen["note"]
    allocated, first = (seen.get(name, 0) / GIB for name in ("allocated", "first"))
    return Said(not defects, needs, allocated, first, words, run.seconds)


def shown(value: float | None, form: str) -> str:
    return form.format(value) if value else "-"


def line(pair: Pair, said: Said) -> str:
    """Return a row of the table."""
    verdict = {True: "fits", False: "does not fit", None: "not known"}
    right = "right" if said.fits == pair.fits else "WRONG"
    card = f"{pair.device}{f', {pair.memory:g} GiB' if pair.memory else ''}"
    theirs = f"{verdict[pair.fits]}{shown(pair.peak, ', {:.2f}')}".removesuffix("-")
    ours = f"{verdict[said.fits]}{shown(said.peak(pair) if said.needs else 0, ', {:.2f}')}"
    cells = (pair.framework, pair.name, card, theirs, ours.removesuffix("-"), right)
    return f"| {' | '.join(cells)} | {shown(said.error(pair), '{:+.1%}')} |"


def totals(asked: Sequence[tuple[Pair, Said]]) -> list[str]:
    """Return how often the check is right, and the mean error of its peaks."""
    lines = []
    for name in (*dict.fromkeys(pair.framework for pair, _ in asked), "all"):
        of = [(pair, said) for pair, said in asked if name in (pair.framework, "all")]
        right = sum(said.fits == pair.fits for pair, said in of)
        errors = [abs(error) for each in of if (error := each[1].error(each[0])) is not None]
        mean = f"{fmean(errors):.1%}, at most {max(errors):.1%}" if errors else "no peak to compare"
        lines.append(f"{name}: {right} of {len(of)} right; error of {len(errors)} peaks: {mean}")
    return lines


def main(only: str, folder: Path) -> int:
    """Ask the pairs, print the table, write results/pairs.json."""
    pairs, environments = read()
    chosen = [pair for pair in pairs if only in f"{pair.framework} {pair.name}"]
    print("\n## pairs\n\n| framework | step | device | they saw (GiB) | we say (GiB) | | error |")
    print("|---|---|---|---|---|---|---|")
    asked = []
    for pair in chosen:
        python = Python(folder / f"pairs-{pair.environment.replace(' ', '-')}")
        python.make(environments[pair.environment])
        said = ask(pair, python)
        asked.append((pair, said))
        print(line(pair, said), flush=True)
    print("", *totals(asked), "", f"load: {bench.load()}", sep="\n")
    rows = [
        {
            **{"framework": pair.framework, "name": pair.name, "fits": pair.fits},
            **{"said": said.fits, "needs": said.needs},
            **{"allocated": said.allocated, "first": said.first},
            **{"peak": pair.peak, "error": said.error(pair), "words": said.words},
            **{"seconds": round(said.seconds, 1), "source": pair.source},
        }
        for pair, said in asked
    ]
    when = datetime.now(UTC).isoformat(timespec="seconds")
    bench.RESULTS.mkdir(exist_ok=True)
    content = {"name": "pairs", "when": when, "totals": totals(asked), "rows": rows}
    (bench.RESULTS / "pairs.json").write_text(json.dumps(content, indent=2) + "\n")
    return 0
