"""Does the image's environment hide or cripple the device, or swallow the message about it?

Such an image works here, and on the machine it trains on the CPU. The variables are judged from
the image's configuration (`judge`). What they name is looked up inside the image
(builder/prove/probes/environment.py).

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit,
"Environment variables (OCI spec)"; TensorFlow's gpu_bfc_allocator.cc and process_util.cc, XLA's
parse_flags_from_env.cc; ld.so(8); tensorflow#96900, keras#21476, pytorch#76034 (docstrings).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from builder import contract
from builder.facts import cuda
from builder.facts.accelerators import Kind
from builder.image import start
from builder.image.plan import LABELS
from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check, probed
from builder.registry import manifests

Environment = Mapping[str, str]

KNOWN = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_FORCE_PTX_JIT",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_VISIBLE_DEVICES",
        "JAX_PLATFORMS",
        "JAX_PLATFORM_NAME",
        "LD_PRELOAD",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "TF_CPP_MAX_VLOG_LEVEL",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_CPP_MIN_VLOG_LEVEL",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_GPU_ALLOCATOR",
        "TF_XLA_FLAGS",
        "XLA_FLAGS",
    }
)
"""Names that a near miss is compared with."""
NEAR = 0.86
"""How alike a name has to be to one of KNOWN, its words sorted, to count as a misspelt one."""

_FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS")
_DATA = "--xla_gpu_cuda_data_dir"
_FILES = {
    "CUDA_INJECTION64_PATH": "every CUDA program ends when it starts",
    "NCCL_TOPO_FILE": "NCCL ends when it starts",
}
"""Variables that name a file, and what happens where it is not there."""
_ALLOCATORS = ("", "cuda_malloc_async", "bfc")
"""What TensorFlow knows as TF_GPU_ALLOCATOR (gpu_process_state.cc)."""
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_REQUIRED = re.compile(r"(cuda|driver)(>=|>)(\d+(?:\.\d+)?)")
_UNSET = "take it out of `environment` in image.yaml, or out of the Dockerfile's ENV"
_HOSTS = re.compile(r"lib(cuda\.so|nvidia-)")
"""Libraries that the driver's package on the machine brings."""
_ISOLATED = re.compile(r"-[A-Za-z]*[IES][A-Za-z]*")
"""Options of python that leave out PYTHONPATH or sitecustomize."""
_NOT_PRELOADED = re.compile(r"object '([^']+)' from LD_PRELOAD cannot be preloaded \(([^)]*)\)")


def run(session: Session) -> Answer:
    """Judge the variables, then look for what they name."""
    environment = manifests.environment(session.config)
    kind = session.subject.stack.accelerator.kind
    defects = list(judge(environment, kind))
    if f"{LABELS}.accelerator" in (session.config.get("Labels") or {}):  # an image of ours
        subject = session.subject
        ours = start.environment(subject.spec, subject.stack)
        defects += without_the_guard(session.config, ours)
    needed = paths(environment, kind)
    flags = [name for name in _FLAGS if environment.get(name, "").lstrip().startswith("-")]
    if needed or flags or environment.get("LD_PRELOAD"):
        run = session.probe(
            "builder.prove.probes.environment",
            {"paths": list(needed), "flags": flags},
        )
        failed, seen = probed(run)
        defects += failed
        defects += [
            Defect(message=needed[path], fix=f"{_UNSET}, or put it into the image")
            for path in seen.get("missing", ())
        ]
        defects += not_preloaded("\n".join(run.tail))
    return defects, {"judged": sorted(environment.keys() & KNOWN)}


def judge(environment: Environment, kind: Kind) -> Iterator[Defect]:
    """Yield what is wrong with the variables of an image for this kind of accelerator."""
    if kind == "gpu":
        yield from _hidden(environment)
        yield from _crippled(environment)
    if kind != "cpu":
        yield from _silent(environment)
    for variable in _FLAGS:
        yield from _flags(variable, environment.get(variable, ""))
    yield from _misspelt(environment)
    level = environment.get("PYTHONOPTIMIZE", "")
    if level.isdigit() and int(level) >= 2:
        yield Defect(
            message=f"PYTHONOPTIMIZE={level} in the image takes docstrings out of every module: "
            "TensorFlow 2.4 to 2.19, Keras and PyTorch have releases that do not import without "
            "them",
            fix=f"write 1, or {_UNSET}",
        )
    if environment.get("PYTHONUNBUFFERED") == "":
        yield Defect(
            message="PYTHONUNBUFFERED is empty in the image: lines reach the log late, and the "
            "last ones of a job that is killed never do",
            fix="set it to 1",
        )


def without_the_guard(config: Mapping[str, Any], ours: Environment) -> Iterator[Defect]:
    """Yield what keeps the start hook from asking for the accelerator. ours: the variables that
    the factory sets."""
    expected = ours.get(contract.ACCELERATOR, "")
    if not expected:
        return
    environment = manifests.environment(config)
    name, actual = expected.partition(",")[0], environment.get(contract.ACCELERATOR, "")
    if actual.partition(",")[0] != name:
        yield Defect(
            message=f"{contract.ACCELERATOR}={actual} in the image: the guard does not ask for a "
            f"{name}, and the program would train without one",
            fix=f"take it out: the factory sets it to {expected}",
        )
    hook = ours["PYTHONPATH"].partition(":")[0]
    path = environment.get("PYTHONPATH", "")
    words = " ".join(config.get("Entrypoint") or ()).split()
    isolated = next((word for word in words if _ISOLATED.fullmatch(word)), "")
    if hook not in path.split(":") or isolated:
        cause = f"python {isolated}" if isolated else f"PYTHONPATH={path}"
        yield Defect(
            message=f"the start hook does not run ({cause}): a program without its accelerator is "
            "not stopped",
            fix=f"keep {hook} in PYTHONPATH, and start python without -I, -E and -S",
        )


def paths(environment: Environment, kind: Kind) -> dict[str, str]:
    """Return the paths that have to be in the image, each with what is wrong where it is not."""
    needed = {
        path: f"{variable}={path} names a file that is not in the image: {effect}"
        for variable, effect in _FILES.items()
        if (path := environment.get(variable, "")) and kind == "gpu"
    }
    for variable in _FLAGS:
        text = environment.get(variable, "").strip()
        if text and not text.startswith("-"):
            needed[text] = (
                f"{variable}={text} is read as the name of a file with flags, and there is none: "
                "TensorFlow ends when it begins to compile"
            )
        data = dict(word.partition("=")[::2] for word in text.split()).get(_DATA, "").strip("'\"")
        if data and kind == "gpu":
            needed[data] = f"{variable} names the CUDA folder {data}, which is not in the image"
    return needed


def not_preloaded(stderr: str) -> list[Defect]:
    """Return the libraries that the loader could not preload, by its own lines."""
    return [
        Defect(
            message=f"LD_PRELOAD names {library}, which cannot be loaded ({why}): the loader "
            "leaves it out and complains in every process",
            fix=f"{_UNSET}, or install the library",
        )
        for library, why in sorted(set(_NOT_PRELOADED.findall(stderr)))
        if not _HOSTS.match(PurePosixPath(library).name)
    ]


def _hidden(environment: Environment) -> Iterator[Defect]:
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        first = devices.split(",")[0].strip()
        some = bool(re.match(r"\d+$|GPU-|MIG-", first))
        yield Defect(
            message=f"CUDA_VISIBLE_DEVICES={devices} in the image "
            + ("leaves out every other GPU of a machine" if some else "hides every GPU"),
            fix=f"{_UNSET}: which GPUs there are, the machine knows",
        )
    mounted = environment.get("NVIDIA_VISIBLE_DEVICES")
    if mounted is not None and mounted not in ("all", "nvidia.com/gpu=all"):
        hides = mounted in ("", "void", "none")
        yield Defect(
            message=f"NVIDIA_VISIBLE_DEVICES={mounted} in the image: the container is given "
            + ("no GPU" if hides else "these GPUs alone, whatever the machine has"),
            fix="set it to all, or take it out",
        )
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if capabilities and not {"compute", "all"} & set(capabilities.replace(" ", "").split(",")):
        yield Defect(
            message=f"NVIDIA_DRIVER_CAPABILITIES={capabilities} has no compute: the driver's "
            "libcuda is not mounted",
            fix="set it to compute,utility",
        )


def _crippled(environment: Environment) -> Iterator[Defect]:
    growth = environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth is not None and growth not in ("true", "false"):
        yield Defect(
            message=f"TF_FORCE_GPU_ALLOW_GROWTH={growth} has no effect: TensorFlow knows only "
            "true and false, in small letters",
            fix="write true or false",
        )
    if environment.get("CUDA_FORCE_PTX_JIT", "0") not in ("", "0"):
        yield Defect(
            message="CUDA_FORCE_PTX_JIT in the image passes over all machine code: what has no PTX "
            "does not run, and the rest compiles for minutes",
            fix=f"{_UNSET}: it is for tests",
        )
    allocator = environment.get("TF_GPU_ALLOCATOR", "").lower()
    if allocator not in _ALLOCATORS:
        yield Defect(
            message=f"TF_GPU_ALLOCATOR={allocator} is no allocator of TensorFlow: it ends when it "
            "looks for a GPU",
            fix=f"write cuda_malloc_async, or {_UNSET}",
        )
    network = environment.get("NCCL_NET", "")
    if network and network not in ("IB", "Socket"):
        yield Defect(
            message=f"NCCL_NET={network} asks for a plugin of one machine's network: elsewhere "
            "NCCL ends with `Failed to initialize any NET plugin`",
            fix=_UNSET,
        )
    for variable in _THREADS:
        if environment.get(variable) == "1":
            yield Defect(
                message=f"{variable}=1 in the image leaves TensorFlow a single thread: the GPU "
                "waits for the input, however many cores stand beside it",
                fix=f"{_UNSET}: TensorFlow takes as many threads as there are cores",
            )
    yield from _required(environment.get("NVIDIA_REQUIRE_CUDA", ""))
    if environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield Defect(
            message="CUDA_LAUNCH_BLOCKING in the image makes every kernel wait for the one before",
            fix=f"{_UNSET}: it is for debugging",
        )


def _required(text: str) -> Iterator[Defect]:
    """Judge NVIDIA_REQUIRE_CUDA: words are alternatives, and all conditions of one must hold."""
    newest = cuda.cuda().ptx[-1]
    most = {"cuda": float(newest.cuda), "driver": float(newest.driver)}
    words = text.split()
    impossible = [
        word
        for word in words
        if any(float(least) > most[what] for what, _, least in _REQUIRED.findall(word))
    ]
    if words and impossible == words:
        yield Defect(
            message=f"NVIDIA_REQUIRE_CUDA={text} asks for what no driver has: the container "
            "toolkit starts it on no machine",
            fix=f"write cuda>={newest.cuda.partition('.')[0]}.0 at most, or {_UNSET}",
        )


def _silent(environment: Environment) -> Iterator[Defect]:
    level = environment.get("TF_CPP_MIN_LOG_LEVEL", "")
    if level.isdigit() and int(level) >= 2:
        yield Defect(
            message=f"TF_CPP_MIN_LOG_LEVEL={level} swallows the line by which TensorFlow says that "
            "it found no accelerator",
            fix="set it to 1 or less",
        )
    for variable in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        platforms = environment.get(variable, "")
        if platforms and set(platforms.lower().split(",")) <= {"cpu"}:
            yield Defect(
                message=f"{variable}={platforms} in the image keeps JAX from the accelerator",
                fix=_UNSET,
            )


def _flags(variable: str, text: str) -> Iterator[Defect]:
    """Judge flags: XLA stops at the first word that is none; of two equal ones the last wins.

    A value in quotes may hold spaces; it counts as one word.
    """
    if not text.lstrip().startswith("-"):
        return
    words = re.findall(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""", text)
    stray = next((word for word in words if not word.startswith("-")), None)
    if stray is not None:
        yield Defect(
            message=f"{variable}: {stray} is no flag, so XLA reads nothing from there on",
            fix=f"write --{stray.lstrip('-')}, or take it out",
        )
    values: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if values.setdefault(name, value) != value:
            yield Defect(
                message=f"{variable} contradicts itself: {name}={values[name]} and {word}",
                fix="keep one of the two",
            )


def _misspelt(environment: Environment) -> Iterator[Defect]:
    known = {_sorted(name): name for name in KNOWN}
    for name in sorted(environment.keys() - KNOWN):
        near = difflib.get_close_matches(_sorted(name), known, n=1, cutoff=NEAR)
        if near:
            yield Defect(
                message=f"nothing reads {name}: it looks like {known[near[0]]}, misspelt",
                fix=f"write {known[near[0]]}, or take it out",
            )


def _sorted(name: str) -> str:
    return "_".join(sorted(name.upper().split("_")))


CHECK = Check("environment", 4, run)
