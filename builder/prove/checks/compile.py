"""Does the program's step compile for the image's accelerator, and fit? There is none here.

The image's own entry point runs three steps on the CPU, with a hook of its framework that compiles
what it runs (builder/frameworks/*/probes/compile.py). The compiler refuses by itself what it cannot
compile, and on a TPU what does not fit. On a GPU the arithmetic is ours. What nobody could find out
is said, and refuses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from builder.core.errors import OutsideError
from builder.facts import accelerators, devices, frameworks
from builder.facts.devices import GIB, Device
from builder.prove.checks.starts import last_traceback
from builder.prove.commands import STARTERS
from builder.prove.image import ACCELERATOR, Image, NotThereError
from builder.prove.judge import Run
from builder.prove.receipts import Defect, Finding
from builder.prove.session import HOOK, JOB, PART, Sandbox, Session, options
from builder.prove.suite import Answer, Check

NAME: Final = "compile"
VARIABLE: Final = "TRAINING_COMPILE"
STEPS: Final = 3
BATCH: Final = 48
"""Examples of a step: a whole number on each device of a usual slice, and hardly ever a size that a
network has anywhere else."""
BESIDE: Final = tuple(f"builder.frameworks.{name}" for name in ("hook", "pjrt", "cudnn", "hlo"))
OWN: Final = ("allocator", "gpu_ways", "kernels", "processes", "convolutions")
"""The modules that hooks import, and those beside PyTorch's and TensorFlow's."""
STARTER: Final = b"#!/usr/bin/env python3\nimport training_image_compile as hook\nhook.launch()\n"
"""What PyTorch's hook has in place of commands.STARTERS: it starts a program once."""
SECONDS: Final = 60
"""How long the program may run until its step has been seen."""

_NOT_COUNTED: Final = (
    "what else the program keeps on the device",
    "workspaces that libraries choose at run time",
    "buffers of NCCL",
    "fragmentation",
)
_UNCOMPILED: Final = ", which the program does not use: without it a step may need more"
SHOWN_SECONDS: Final = 1e-5
"""A bound below this says nothing: a call alone takes longer."""
_SIZES: Final = re.compile(r"total memory required for ([\w ]+?) \(([\d.]+[KMGT]?)\) exceeds")
_LINE: Final = re.compile(r"^\s*(/[^:\n]+):(\d+):\d+ \[", re.MULTILINE)
_FLAG: Final = re.compile(r"Unknown (command line flag '|flags? in \w+_FLAGS: ).*")
"""What XLA and libtpu say of a flag that they do not know, at once and on any device."""
_ATTENTION: Final = re.compile("fmha|attention")
"""In the name of a call of cuDNN: XLA's and PyTorch's."""
_SHARDING: Final = re.compile(r"divisible|evenly|sharding|mesh", re.IGNORECASE)


def hook(framework: str, name: str = NAME) -> str:
    """Return the module that compiles a framework's programs, "" for none."""
    module = f"builder.frameworks.{framework}.probes.{name}"
    return module if util.find_spec(module) else ""


@dataclass(frozen=True)
class CompileTarget:
    """What a program is compiled for, and by what."""

    device: Device
    framework: str
    """Its name; its hook compiles the program in the image."""
    topology: str = ""
    """Of a TPU, in place of the device's own."""
    cudnn: str = ""
    """The image's, "" for none."""
    batch: int = BATCH
    """Examples of a step by which the largest batch is looked for; 0: it is not."""
    processes: int = 0
    """Of the job, one for each GPU; 0 where nobody says how many."""

    def __post_init__(self) -> None:
        """Raise NotThereError where nothing compiles the framework's programs for the device."""
        framework = frameworks.of(self.framework)
        if framework.compiler and not self.device.is_gpu:
            raise NotThereError(f"not asked: {framework.title}'s steps are compiled for GPUs alone")

    def compile(
        self,
        sandbox: Sandbox,
        arguments: Sequence[str],
        entrypoint: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        """Start a container's program with the hook. environment: a job's."""
        device, part = self.device, frameworks.of(self.framework).compiler
        how = {"chip_config_name": device.chip} if device.chip else {}
        if device.is_gpu:
            how = {"target_config": device.target(self.cudnn), "topology": "1x1x1"}
        request = {
            "platform": "cuda" if device.is_gpu else "tpu",
            "topology": self.topology or device.topology,
            "options": how,
            "batch": self.batch,
            "world": self.processes,
            "memory": device.memory,
            "taken": device.taken,
            "seconds": SECONDS,
            "capability": device.capability,
            "properties": device.properties() if device.is_gpu else {},
            "plugin": PART,
            "compiler": f"{part.package} {part.version}" if part else "",
        }
        own = (hook(self.framework, name) for name in OWN)
        beside = (*BESIDE, *filter(None, own))
        try:
            return sandbox.start_with(
                hook(self.framework),
                VARIABLE,
                request,
                arguments,
                entrypoint,
                beside,
                part,
                environment=environment,
                programs=dict.fromkeys(
                    STARTERS if hook(self.framework, "processes") else (), STARTER
                ),
            )
        except OutsideError as error:  # no index has the part
            return Run(0, 0.0, answer={NAME: {"failed": str(error)}})


def target_of(image: Image, topology: str = "") -> CompileTarget:
    """Return what an image that anybody made is compiled for. Raises NotThereError."""
    # an input pipeline is often of a second framework, which brings no compiler
    hooked = [each for each in image.frameworks if hook(each.name)]
    named = sorted(hooked, key=lambda each: each.compiler is not None)
    if not named:
        raise NotThereError("not asked: no framework in the image has a hook for it")
    name = image.gpu.name if image.gpu else (image.config.get("Labels") or {}).get(ACCELERATOR, "")
    if not (topology or name):
        raise NotThereError("not asked: name a GPU (--gpu) or a slice of a TPU (--topology)")
    known = accelerators.accelerators().get(name)
    device = devices.on(topology) if topology else known and devices.of(known)
    if not device:  # a GPU by its compute capability, or one that no image is made for
        raise NotThereError(f"not asked: nothing is known of {name}'s memory and speed")
    cudnn = (each.version for each in image.content.libraries if "-cudnn-" in each.package)
    return CompileTarget(device, named[0].name, topology, next(cudnn, ""))


def arguments_of(folder: str, batch: int = BATCH) -> list[str]:
    """Return the arguments of a short run, for a program that keeps to builder/contract.py."""
    return options(folder, STEPS, batch, 10**6)


def run(session: Session) -> Answer:
    """Compile the step of the image's program for the accelerator that the image is made for."""
    subject = session.subject
    device = devices.of(subject.stack.accelerator)
    if device is None:
        name = subject.spec.accelerator
        raise NotThereError(f"not asked: nothing is known of {name}'s memory and speed")
    target = CompileTarget(device, subject.spec.framework, cudnn=subject.stack.cudnn or "")
    arguments = subject.spec.smoke or arguments_of(f"{JOB}/{NAME}")
    return judge(target.compile(session, arguments), device)


def of_started(image: Image) -> Answer:
    """Say what was compiled of an image that anybody made. That of a subject is the session's."""
    if image.subject:
        return (), {}
    if image.started is None:
        raise NotThereError("only an image in the engine is started (docker load, docker pull)")
    target = target_of(image, image.started.topology)
    if image.started.compiled is None:
        raise NotThereError("the image names no command")
    return judge(image.started.compiled, target.device, target.topology)


@validated(frozen=True)
class Found:
    """What a hook answered. The program shares its lines, so each value is of its type."""

    step: Annotated[str, Field(max_length=200)] = ""
    """The function's name; "" where none was seen."""
    refused: str = ""
    """The compiler's words where the program is to blame that it does not compile."""
    failed: str = ""
    """Words of anything else that went wrong."""
    room: NonNegativeInt = 0
    """Bytes of a device that the framework gives to a step."""
    arguments: NonNegativeInt = 0
    outputs: NonNegativeInt = 0
    temporaries: NonNegativeInt = 0
    aliased: NonNegativeInt = 0
    code: NonNegativeInt = 0
    """Bytes on one device; aliased: outputs that take the place of arguments."""
    flops: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Operations of one device."""
    types: tuple[str, ...] = ()
    """Those that products calculate in."""
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Calls of libraries: target -> type -> how many."""
    devices: NonNegativeInt = 1
    of: NonNegativeInt = 1
    """How many devices it uses, and how many there are."""
    batch: NonNegativeInt = 0
    largest_batch: NonNegativeInt = 0
    """Examples of a step that fits, 0 where they are not known."""
    shapes: NonNegativeInt = 1
    """How many different shapes it was called with."""
    uncompiled: bool = False
    """The program itself does not let XLA compile it."""
    compiler: Annotated[str, Field(max_length=200)] = ""
    """What compiled it, where that is not the image's own."""
    counted: bool = False
    """Its memory was counted, and nothing of it was compiled."""
    remark: Annotated[str, Field(max_length=1000)] = ""
    """What else is known of it."""
    smaller: str = ""
    more: str = ""
    """Fixes: what makes a step smaller, and what gives it more of the memory."""

    @property
    def needs(self) -> int:
        """The bytes that a step takes of one device."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


def judge(run: Run, device: Device, topology: str = "") -> Answer:
    """Return what the compiler said, and what follows for a device.

    Raises NotThereError where nobody could find out.
    """
    said = (run.answer or {}).get(NAME)
    try:
        found = TypeAdapter(Found).validate_python(said or {})
    except ValidationError as error:
        raise NotThereError(f"not known: {error.errors()[0]['msg']} in its answer") from None
    where = _where(device, topology)
    if not found.step:
        return _not_found(run, device, where, found)
    seen = {**(said or {}), "device": device.name, "topology": topology or device.topology}
    if found.refused:
        return [_refused(found, where)], seen
    if found.failed:
        words = f"{found.step} could not be compiled here: {_first(found.failed)}"
        raise NotThereError(f"not known: {words}")
    moved = found.arguments + found.outputs
    least = device.seconds(found.flops, moved, frozenset(found.types))
    seen |= {"needs": found.needs, "least_seconds": least, "not_counted": list(_NOT_COUNTED)}
    defects = [*_too_large(found, device), *_no_such_type(found, device)]
    bound = f"; a step is at least {least * 1e3:.2g} ms" if least > SHOWN_SECONDS else ""
    batch = max(found.batch, found.largest_batch)
    fits = f"; a batch of {batch:,} fits" if batch else ""
    idle = f"; it uses {found.devices} of the {found.of} devices"
    again = f"; XLA compiles it again for each of the {found.shapes} shapes that it got"
    does = f"{found.step} {'fits' if found.counted else 'compiles for'} {where}"
    note = (
        f"{does}; needs {_gib(found.needs)} of {_gib(found.room)} GiB"
        f"{'' if device.is_gpu and found.of == 1 else ' a device'}{bound}{fits}"
        f"{idle if found.devices < found.of else ''}"
        f"{again if found.shapes > 1 else ''}"
        f"{_replaced(found, device)}"
        f"{f'; by {found.compiler}' if found.compiler else ''}"
        f"{_UNCOMPILED if found.uncompiled else ''}"
        f"{f'; {_first(found.remark)}' if found.remark else ''}"
    )
    return defects, {"note": "" if defects else note, **seen}


def _not_found(run: Run, device: Device, where: str, found: Found) -> Answer:
    """Say why no step was seen. A mesh that the accelerator's devices cannot divide is a defect."""
    traceback = last_traceback(run.tail)
    if run.exit_code and (flag := _FLAG.search("\n".join(run.tail))):
        defect = Defect(f"on {where} the program ends: {flag[0]}", "take this flag out")
        return [defect], {"device": device.name, "exit_code": run.exit_code}
    if run.exit_code and _SHARDING.search(traceback.raised) and not run.timed_out:
        at = f" ({traceback.own})" if traceback.own else ""
        defect = Defect(
            f"on the devices of {where} the program ends: {traceback.raised[:300]}{at}",
            "let the batch and the mesh follow the number of devices",
        )
        return [defect], {"device": device.name, "exit_code": run.exit_code}
    if found.failed:
        raise NotThereError(f"not known: {_first(found.failed)}")
    if run.timed_out:
        raise NotThereError(f"not known: it took longer than {run.seconds:.0f} s")
    if run.exit_code:
        raise NotThereError(f"not known: the program ended before a step: {run.last}")
    raise NotThereError(
        "not asked: the program compiles no step; job.compile(function, *examples) names one"
    )


def _refused(found: Found, where: str) -> Defect:
    """Return the compiler's refusal, in our words where it is about memory."""
    words = found.refused
    available = re.search(r"available HBM \(([\d.]+[KMGT]?)\)", words)
    if (size := _SIZES.search(words)) and available:
        return Defect(
            f"{found.step} does not fit {where}: {size[1]} need {size[2]}iB of {available[1]}iB",
            f"{found.smaller}, or shard it over more devices",
        )
    return Defect(
        f"{found.step} does not compile for {where}: {_program_line(words)}{_first(words)}",
        "change what it names, or take an accelerator that has it",
    )


def _too_large(found: Found, device: Device) -> list[Defect]:
    """Return why a step does not fit, by the bytes that XLA counted: for a GPU it refuses none."""
    if found.needs <= found.room:
        return []
    has = f"{_gib(device.memory)} GiB, of which a program gets {_gib(found.room)}"
    raised = found.more and found.needs <= device.memory - device.taken
    fix = f"{found.more}, or {found.smaller}" if raised else found.smaller
    what = f"{found.step} does not fit {device.name}: it needs {_gib(found.needs)} of {has}"
    if found.uncompiled:
        return [Finding(f"{what}; compiled by {found.compiler}{_UNCOMPILED}", fix)]
    return [Defect(what, fix)]


def _no_such_type(found: Found, device: Device) -> list[Defect]:
    """Return the calls of libraries in a type that these have not for a device, one of each."""
    defects, told = [], []
    for target, kind in ((target, kind) for target, kinds in found.calls.items() for kind in kinds):
        library, attends = "cudnn" if "cudnn" in target else "cublas", _ATTENTION.search(target)
        lacks = device.lacks(library, "attention" if attends else kind)
        if lacks and lacks not in told:
            told.append(lacks)
            what = f"{found.step} calls {target} in {kind}, which {library} has from {lacks.since}"
            fix = f"calculate in a type that {device.name} has, such as float16"
            fix = "let the framework choose another implementation" if attends else fix
            defects.append(Defect(f"{what} on: {device.name} is {device.capability}", fix))
    return defects


def _replaced(found: Found, device: Device) -> str:
    """Say which types of the program's are others there: XLA replaces what a library has not."""
    called = {kind for kinds in found.calls.values() for kind in kinds}
    lacks = [
        kind
        for kind in found.types
        if kind not in called and any(device.lacks(each, kind) for each in ("cudnn", "cublas"))
    ]
    instead = " or ".join(sorted(called))
    return f"; {', '.join(lacks)} becomes {instead} there" if lacks and called else ""


def _where(device: Device, topology: str = "") -> str:
    shape = (topology or device.topology).partition(":")[2]
    return f"{device.name} {shape}".strip()


def _program_line(words: str) -> str:
    """Return the innermost line that a compiler names and that is of no package and not of the
    hook: "train.py:6: ", "" for none."""
    others = ("-packages/", f"{HOOK}/")
    lines = (each for each in _LINE.finditer(words) if not any(part in each[1] for part in others))
    return next((f"{PurePosixPath(match[1]).name}:{match[2]}: " for match in lines), "")


def _first(words: str) -> str:
    return " ".join(words.split("\n")[0].split())[:300]


def _gib(count: float) -> str:
    return f"{count / GIB:.1f}" if count >= 0.05 * GIB else "less than 0.1"


CHECK = Check(NAME, 5, run, frozenset({"gpu", "tpu"}), rule=of_started, may_be_unanswered=True)
