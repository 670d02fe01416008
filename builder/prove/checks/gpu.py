"""What does the program do on this machine's GPU, and is it what the check `compile` said?

Asked by `builder prove --on-gpu` alone. The program runs to its end in a container that has the GPU
and is otherwise as hermetic as the others, with a hook of its framework that measures
(builder/frameworks/*/probes/gpu.py). Which GPU and which driver it is says the machine, never the
image. A machine without the GPU is no answer: nothing is written then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from builder.audit.audited import Gpu
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent
from builder.engine import gpus
from builder.engine.containers import ContainerEngine
from builder.engine.gpus import MachineGpu
from builder.facts import frameworks
from builder.facts.devices import GIB
from builder.prove.checks import compile as compiling
from builder.prove.checks import start
from builder.prove.image import Image, NotThereError, RanOnGpu
from builder.prove.judge import Run
from builder.prove.receipts import Defect, Finding
from builder.prove.session import JOB, NOT_EXECUTED, options
from builder.prove.smoke import sandbox
from builder.prove.suite import Answer, Check

if TYPE_CHECKING:
    import docker

NAME: Final = "gpu"
VARIABLE: Final = "TRAINING_ON_GPU"
STEPS: Final = 20
MARGIN: Final = 0.15
"""A peak may be higher by this part of what was said, and by SPARE bytes: what `compile` says of a
step is wrong by half of it in the mean (docs/compile.md), and does not count libraries' workspaces.
"""
SPARE: Final = 256 * 2**20
BOUND: Final = 0.9
"""A step that takes less than this part of its least time refutes that time."""


def device(client: Callable[[], docker.DockerClient], gpu: Gpu | None) -> MachineGpu:
    """Return the machine's GPU to run on: the first that is called like the one that is asked for;
    of a compute capability the first of all.

    Raises InputError where none is asked for, OutsideError where it is not here.
    """
    if gpu is None:
        raise InputError("--on-gpu: nothing says for which GPU the image is", "name it: --gpu v100")
    there = gpus.require(client())
    words = [] if gpu.name[0].isdigit() else re.split(r"\W+", gpu.name)
    patterns = [rf"\b{re.escape(word)}[A-Z]?\b" for word in words]  # a V100S is a V100, too
    for each in there:
        if all(re.search(pattern, each.name, re.IGNORECASE) for pattern in patterns):
            return each
    raise _other(gpu, ", ".join(each.name or "a GPU without a name" for each in there))


@dataclass(frozen=True)
class GpuRun:
    """The program of an image that is to run on a GPU of this machine."""

    image: Image
    name: str
    gpu: Gpu
    """What the image is judged for."""
    device: MachineGpu
    command: str | None = None
    """What a shell of the image runs; None for its own entry point, which takes the options of
    builder/contract.py."""

    def start(self, engine: ContainerEngine, on_event: OnEvent) -> RanOnGpu:
        """Run it. Raises InputError where nothing measures it, OutsideError where the GPU has
        another compute capability than the image is judged for."""
        hooked = [each for each in self.image.frameworks if compiling.hook(each.name, NAME)]
        if not hooked:
            known = ", ".join(each.title for each in frameworks.every())
            what = f"--on-gpu: {self.name} holds no framework that can be measured"
            raise InputError(what, f"name an image with one of {known}")
        # an input pipeline is often of a second framework, which brings no compiler
        framework = min(hooked, key=lambda each: each.compiler is not None)
        beside = ("builder.frameworks.on_gpu", *compiling.BESIDE, compiling.hook(framework.name))
        arguments, shell = options(f"{JOB}/{NAME}", STEPS, compiling.BATCH, 10**6), None
        if self.command is not None:
            arguments, shell = [self.command], ["/bin/sh", "-c"]
        image_id, what = str(self.image.content.image_id), "run on the GPU"
        with sandbox(engine, image_id, self.name, what, on_event) as made:
            run = made.start_with(
                compiling.hook(framework.name, NAME),
                VARIABLE,
                {"step": said_of(self.image).get("step", "")},
                arguments,
                shell,
                beside,
                gpu=self.device.id,
            )
        if run.exit_code == NOT_EXECUTED and re.search("device driver|nvidia", run.last):
            what = f"--on-gpu: the engine gives no container a GPU: {run.last}"
            raise OutsideError(what, "mend NVIDIA's container toolkit: docker run --gpus all")
        found = _measured(run).capability
        if found not in ("", str(self.gpu.capability)):
            raise _other(self.gpu, f"{self.device.name} ({found})")
        batch = 0 if shell else compiling.BATCH
        return RanOnGpu(run, self.device.name, gpus.driver(), batch)


def _other(gpu: Gpu, there: str) -> OutsideError:
    wanted = gpu.name if gpu.name[0].isdigit() else f"{gpu.name} ({gpu.capability})"
    what = f"--on-gpu: the image is judged for {wanted}, and this machine has {there}"
    return OutsideError(what, f"take a machine with {gpu.name}, or name this GPU: --gpu")


@validated(frozen=True)
class Measured:
    """What a hook answered. The program shares its lines, so each value is of its type."""

    devices: NonNegativeInt | None = None
    """How many GPUs the framework sees; None where no process used one."""
    capability: Annotated[str, Field(max_length=10)] = ""
    peak: NonNegativeInt = 0
    """The most bytes that the framework's allocator took of the GPU."""
    steps: NonNegativeInt = 0
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Median of a step, 0 where none was seen."""
    failed: Annotated[str, Field(max_length=1000)] = ""
    """Why the GPU could not be asked."""


def run(image: Image) -> Answer:
    """Compare what an image did on a GPU with what was said of it."""
    if image.ran is None:
        raise NotThereError("it ran on no GPU (builder prove --on-gpu)")
    return judge(image.ran, said_of(image))


def said_of(image: Image) -> Mapping[str, Any]:
    """Return what the check `compile` saw of the same program; {} where it saw no step."""
    with contextlib.suppress(NotThereError):
        return compiling.of_started(image)[1]
    return {}


def judge(ran: RanOnGpu, said: Mapping[str, Any]) -> Answer:
    """Return what is wrong with a run on a GPU. said: what `compile` saw."""
    on, found = f"{ran.device}, driver {ran.driver or 'unknown'}", _measured(ran.run)
    seen: dict[str, Any] = {"device": ran.device, "driver": ran.driver}
    if defect := start.ended_badly(ran.run, f"the program on {ran.device}") or _unused(found, on):
        return [defect], {**seen, "exit_code": ran.run.exit_code}
    steps, seconds = _steps(found, ran)
    needs, least = int(said.get("needs", 0)), float(said.get("least_seconds", 0.0))
    seen |= {"capability": found.capability, "steps": steps, "margin": MARGIN}
    seen |= {"peak": found.peak, "said": needs, "seconds": seconds, "least_seconds": least}
    took = f"{found.peak / GIB:.2f} GiB" + (f", {needs / GIB:.2f} said" if needs else "")
    bound = f", at least {least * 1e3:.3g} said" if least > compiling.SHOWN_SECONDS else ""
    timed = f"; {steps:,} steps" if steps else ""
    timed += f", each {seconds * 1e3:.3g} ms{bound}" if seconds else ""
    wrong = []
    if needs and found.peak > needs * (1 + MARGIN) + SPARE and not said.get("uncompiled"):
        wrong.append(f"the program took {took}: that is more than the margin of {MARGIN:.0%}")
    if 0 < seconds < BOUND * least:
        wrong.append(f"a step took {seconds * 1e3:.3g} ms{bound}")
    fix = "go by what this GPU says, and tell us of the program: `compile` is wrong about it"
    defects = [Finding(f"{on}: {each}", fix) for each in wrong]
    return defects, {**seen, "note": f"{on}: {took}{timed}"}


def _measured(run: Run) -> Measured:
    try:
        return TypeAdapter(Measured).validate_python((run.answer or {}).get(NAME, {}))
    except ValidationError as error:
        return Measured(failed=f"{error.errors()[0]['msg']} in its answer")


def _unused(found: Measured, on: str) -> Defect | None:
    """Return why nothing was measured on a GPU although the program ended well."""
    if found.failed:
        return Defect(f"{on}: not measured: {found.failed}", "builder -v prove shows every line")
    if found.devices == 0:
        return Defect(
            f"the framework sees no GPU, and computed on the CPU, although there is one: {on}",
            "a library that it opens is missing, or the driver is too old for its CUDA: "
            "builder -v prove shows its own log",
        )
    if not (found.peak and found.capability):
        return Defect(
            f"the program ended well, and was not seen to use the GPU: {on}",
            "let it compute there, and end by itself: after os._exit nothing is measured",
        )
    return None


def _steps(found: Measured, ran: RanOnGpu) -> tuple[int, float]:
    """Return how many steps there were, and seconds of one, 0 where they are not known. Where a
    call takes several steps, the program's own lines tell."""
    told = ran.run.last_step
    if found.steps >= told:
        return found.steps, found.seconds
    rates = [event.examples_per_second for event in ran.run.events if event.examples_per_second]
    return told, ran.batch / rates[-1] if rates and rates[-1] > 0 else 0.0


CHECK = Check.of(NAME, 1, run)
