"""Do the image's variables hide or cripple the device, swallow the message about it, or say what is
true of one machine only?

Such an image works here, and on the machine it trains on the CPU, or not at all. variables.yaml is
the table. Files that variables name are looked for in the layers; a framework is asked for its
flags.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit,
"Environment variables (OCI spec)"; NCCL, "Environment Variables"; XLA's parse_flags_from_env.cc;
TensorFlow's gpu_bfc_allocator.cc, gpu_process_state.cc and process_util.cc; ld.so(8);
tensorflow#96900, keras#21476, pytorch#76034 (docstrings). docs/proof.md names the public threads.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter

from builder import contract
from builder.devicecode.verdict import Audit
from builder.facts import cuda, frameworks, read_table
from builder.facts.accelerators import Kind
from builder.image import start
from builder.prove.checks import contents
from builder.prove.image import ACCELERATOR, Image
from builder.prove.receipts import Defect, Finding
from builder.prove.session import Session
from builder.prove.suite import Answer, Check
from builder.registry import manifests

Environment = Mapping[str, str]

_UNSET: Final = "take it out of `environment` in image.yaml, or out of the Dockerfile's ENV"


Words = Annotated[tuple[str, ...], BeforeValidator(str.split)]


class Rule(BaseModel):
    """A row of variables.yaml, which says what its fields mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: Words
    sound: str
    message: str
    fix: str = _UNSET
    kinds: Words = ("gpu",)
    unset: bool = False
    usual: bool = False


@cache
def rules() -> tuple[Rule, ...]:
    table = read_table(Path(__file__).parent / "variables.yaml")["rules"]
    return TypeAdapter(tuple[Rule, ...]).validate_python(table)


_FLAGS: Final = ("XLA_FLAGS", "TF_XLA_FLAGS")
_DATA: Final = "--xla_gpu_cuda_data_dir"
_FILES: Final = {
    "CUDA_INJECTION64_PATH": "every CUDA program ends when it starts",
    "NCCL_TOPO_FILE": "NCCL ends when it starts",
    "TRITON_PTXAS_PATH": "Triton compiles nothing",
    "TRITON_LIBDEVICE_PATH": "Triton compiles nothing",
}
"""Variables that name a file, and what happens where it is not there."""
_PLUGINS: Final = {
    "NCCL_NET_PLUGIN": "libnccl-net",
    "NCCL_TUNER_PLUGIN": "libnccl-tuner",
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler",
}
"""Variables that name a plugin of NCCL's, and the beginning of its file's name."""

_PAIRS: Final = {
    "expandable_segments": "True|False",
    "backend": "native|cudaMallocAsync",
    "max_split_size_mb": r"2[1-9]|[3-9]\d|\d{3,}",
    "garbage_collection_threshold": r"0?\.\d+",
    r"(max_non_split_rounding|large_segment_size|pinned_reserve_segment_size)_mb": r"\d+",
    r"(roundup|release_lock|pinned|graph_capture|throw|use|per_process)_\w+": ".+",
}
"""Pairs of PyTorch's allocator (c10/cuda/CUDAAllocatorConfig.cpp): names, and their values."""

_OTHERS: Final = (
    *("CUDA_DEVICE_ORDER", "LD_PRELOAD", "TF_CPP_MAX_VLOG_LEVEL", "TF_CPP_MIN_VLOG_LEVEL"),
    *_FLAGS,
)
_NEAR_MISSES: Final = re.compile("(CUDA|JAX|NVIDIA|TF)_")
"""Names of the table that a near miss is compared with."""
NEAR: Final = 0.86
"""How alike a name has to be to a known one, its words sorted, to count as a misspelt one."""

_REQUIRED: Final = re.compile(r"(cuda|driver)(>=|>)(\d+(?:\.\d+)?)")
_CONDITION: Final = re.compile(r"(cuda|driver)(>=|<=|>|<)(\d+(?:\.\d+)?)")
_HOSTS: Final = re.compile(r"lib(cuda\.so|nvidia-)")
"""Libraries that the driver's package on the machine brings."""
_ISOLATED: Final = re.compile(r"-[A-Za-z]*[IES][A-Za-z]*")
"""Options of python that leave out PYTHONPATH or sitecustomize."""
_UNKNOWN: Final = re.compile(r"Unknown flags? in (\w+): (.*)")
_FLAG_SECONDS: Final = 300.0


def run(image: Image) -> Answer:
    """Judge the variables, and look for the files that they name; in an image of the project, see
    that its guard asks."""
    environment = image.environment
    defects = list(judge(environment, image.kind))
    for path, message in paths(environment, image.kind).items():
        if image.tree.resolve(path) is None:
            defects.append(Defect(message, f"{_UNSET}, or put it into the image"))
    for name in re.split("[ :]", environment.get("LD_PRELOAD", "")):
        known = image.tree.resolve(name) if "/" in name else next(image.tree.named(name), None)
        if name and not known and not _HOSTS.match(PurePosixPath(name).name):
            effect = "the loader leaves it out and complains in every process"
            what = f"LD_PRELOAD names {name}, which is not in the image: {effect}"
            defects.append(Defect(what, f"{_UNSET}, or install the library"))
    if image.kind == "gpu":
        defects += [*_plugins(image), *_older_drivers(image), *_architectures(image)]
    defects += [*_keras(image), *_unread(image)]
    if image.subject and ACCELERATOR in (image.config.get("Labels") or {}):
        ours = start.environment(image.subject.spec, image.subject.stack)
        defects += without_the_guard(image.config, ours)
    judged = sorted(environment.keys() & _known())
    return defects, {"note": f"{len(environment)} variables", "judged": judged}


def judge(environment: Environment, kind: Kind) -> Iterator[Defect]:
    """Yield what is wrong with the variables of an image for this kind of accelerator."""
    for rule in rules():
        for name in rule.names if kind in rule.kinds else ():
            value = environment.get(name, "" if rule.unset else None)
            if value is not None and not re.fullmatch(rule.sound, value, re.DOTALL):
                said = {"name": name, "value": value}
                yield (Finding if rule.usual else Defect)(
                    rule.message.format(**said), rule.fix.format(**said)
                )
    if kind == "gpu":
        yield from _required(environment.get("NVIDIA_REQUIRE_CUDA", ""))
    for variable in _FLAGS:
        yield from _flags(variable, environment.get(variable, ""))
    yield from _misspelt(environment)
    yield from _allocator(environment)
    yield from _rendezvous(environment)


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
            f"{contract.ACCELERATOR}={actual} in the image: the guard does not ask for a "
            f"{name}, and the program would train without one",
            f"take it out: the factory sets it to {expected}",
        )
    hook = ours["PYTHONPATH"].partition(":")[0]
    path = environment.get("PYTHONPATH", "")
    words = " ".join(config.get("Entrypoint") or ()).split()
    isolated = next((word for word in words if _ISOLATED.fullmatch(word)), "")
    if hook not in path.split(":") or isolated:
        cause = f"python {isolated}" if isolated else f"PYTHONPATH={path}"
        yield Defect(
            f"the start hook does not run ({cause}): a program without its accelerator is "
            "not stopped",
            f"keep {hook} in PYTHONPATH, and start python without -I, -E and -S",
        )


def unknown_flags(session: Session) -> Answer:
    """Let the image's framework compile a function for the CPU, where flags are set: XLA ends the
    process on one that it does not know."""
    framework = frameworks.of(session.subject.spec.framework)
    environment = session.read.environment
    written = any(environment.get(name, "").lstrip().startswith("-") for name in _FLAGS)
    if not (written and framework.xla_program):
        return [], {}
    program = ["-B", "-c", framework.xla_program]
    run = session.start(program, _FLAG_SECONDS, entrypoint=[session.python])
    match = next(filter(None, map(_UNKNOWN.search, run.tail)), None)
    if not (run.exit_code and match):
        return [], {}
    flag = Defect(
        f"{match[1]}: this {framework.title} does not know {match[2].strip()}: it ends "
        "when it begins to compile",
        "correct the flag, or take it out: flags come and go with releases",
    )
    return [flag], {}


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
            f"NVIDIA_REQUIRE_CUDA={text} asks for what no driver has: the container "
            "toolkit starts it on no machine",
            f"write cuda>={newest.cuda.partition('.')[0]}.0 at most, or {_UNSET}",
        )


def _older_drivers(image: Image) -> Iterator[Finding]:
    """Yield where NVIDIA_REQUIRE_CUDA keeps out drivers that the libraries would run with."""
    text = image.environment.get("NVIDIA_REQUIRE_CUDA", "")
    libraries = Audit(image.content.libraries)
    needed = libraries.verdict(image.gpu.capability).driver if image.gpu else None
    if needed and not admits(text, int(needed.driver)):
        yield Finding(
            f"NVIDIA_REQUIRE_CUDA={text} keeps out driver {needed.driver}, with which the "
            "libraries run: the container toolkit starts it on fewer machines",
            f"write driver>={needed.driver}",
        )


def admits(text: str, driver: int) -> bool:
    """Tell whether NVIDIA_REQUIRE_CUDA lets a container start on a machine with a driver. What it
    says of brands and architectures is taken for granted."""
    brought = (float(row.cuda) for row in cuda.cuda().ptx if int(row.driver) <= driver)
    has = {"driver": float(driver), "cuda": max(brought, default=0.0)}
    holds = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
    words = (_CONDITION.findall(word) for word in text.split())
    return not text.strip() or any(
        all(holds[sign](has[what], float(number)) for what, sign, number in word) for word in words
    )


def _architectures(image: Image) -> Iterator[Finding]:
    """Yield where what PyTorch compiles would have nothing for the GPU."""
    text = image.environment.get("TORCH_CUDA_ARCH_LIST", "")
    listed = re.findall(r"(\d+)\.(\d+)[af]?(\+PTX)?", text)
    if not image.gpu or not listed:
        return
    own = image.gpu.capability
    runs = any(
        (int(major), int(minor)) <= (own.major, own.minor) and (ptx or int(major) == own.major)
        for major, minor, ptx in listed
    )
    if not runs:
        yield Finding(
            f"TORCH_CUDA_ARCH_LIST={text} leaves out {own}: what is compiled later does not run on "
            f"{image.gpu.name}",
            f"write {own}, or take it out",
        )


def _plugins(image: Image) -> Iterator[Finding]:
    """Yield the plugins of NCCL that are not there; a machine may mount them."""
    for variable, stem in _PLUGINS.items():
        value = image.environment.get(variable, "")
        names = (value, f"{stem}-{value}.so", f"{stem}.so" if value == stem else value)
        there = image.tree.resolve(value) if "/" in value else None
        found = there or any(next(image.tree.named(name), None) for name in names)
        if value and value != "none" and not found:
            yield Finding(
                f"{variable}={value} names a plugin that is not in the image: NCCL goes on without "
                "it, over the slower network",
                f"{_UNSET}, or install the plugin",
            )


def _keras(image: Image) -> Iterator[Defect]:
    """Yield where Keras would import what is not there."""
    environment, packages = image.environment, contents.packages(image)
    backend, there = environment.get("KERAS_BACKEND", ""), {f.name for f in image.frameworks}
    others = {"numpy", "openvino"} & packages.keys()
    if "keras" in packages and backend and backend not in there | others:
        yield Defect(
            f"KERAS_BACKEND={backend}, which is not in the image: Keras is not imported",
            f"{_UNSET}, or install it",
        )
    legacy = environment.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if legacy and "tensorflow" in there and "tf-keras" not in packages:
        yield Defect(
            "TF_USE_LEGACY_KERAS asks for Keras 2, and tf_keras is not there: tf.keras fails",
            f"{_UNSET}, or install tf_keras",
        )


def _unread(image: Image) -> Iterator[Defect]:
    """Yield the flags of XLA that no library of the image has a text of."""
    known = {flag for library in image.content.libraries for flag in library.flags}
    names = re.findall(r"(?:^|\s)--(xla_\w+)", image.environment.get("XLA_FLAGS", ""))
    for name in dict.fromkeys(names) if known else ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield Defect(
                f"XLA_FLAGS: no library of the image knows --{name}: XLA ends when it begins to "
                "compile",
                f"write --{near[0]}, or take it out" if near else "take it out: flags come and go",
            )


def _rendezvous(environment: Environment) -> Iterator[Defect]:
    address, rank = environment.get("MASTER_ADDR"), environment.get("RANK")
    several = environment.get("WORLD_SIZE", "1") not in ("", "1")
    if address and rank is not None and (several or rank not in ("", "0")):
        yield Defect(
            f"MASTER_ADDR={address} and RANK={rank} are set in the image: each container is the "
            "same process of one job",
            "take them out; the service that starts the job sets them",
        )


def _allocator(environment: Environment) -> Iterator[Defect]:
    """Judge the pairs that PyTorch's allocator reads when it first asks for memory."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        text = environment.get(variable, "")
        for pair in re.split(r",(?![^\[]*\])", text) if text else ():
            name, colon, value = (part.strip() for part in pair.partition(":"))
            if not colon or re.search(r"[:;=]", name + value.partition("[")[0]):
                yield Defect(
                    f"{variable}={text}: PyTorch reads pairs NAME:VALUE with a comma between, and "
                    "ends when it first asks for memory",
                    f"write max_split_size_mb:128,expandable_segments:True, or {_UNSET}",
                )
                return
            if not (known := [each for each in _PAIRS if re.fullmatch(each, name)]):
                yield Finding(
                    f"{variable}: {name} is no name that PyTorch is known to read: it ends with "
                    "`Unrecognized CachingAllocator option`",
                    "correct the name",
                )
            elif not re.fullmatch(_PAIRS[known[0]], value):
                yield Defect(
                    f"{variable}: PyTorch does not take {name}:{value}, and ends when it first "
                    "asks for memory",
                    "write True or False, more than 20 MB, a share below 1, native or "
                    "cudaMallocAsync",
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
            f"{variable}: {stray} is no flag, so XLA reads nothing from there on",
            f"write --{stray.lstrip('-')}, or take it out",
        )
    values: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if values.setdefault(name, value) != value:
            yield Defect(
                f"{variable} contradicts itself: {name}={values[name]} and {word}",
                "keep one of the two",
            )


def _known() -> frozenset[str]:
    judged = (name for rule in rules() for name in rule.names if _NEAR_MISSES.match(name))
    return frozenset({*judged, *_OTHERS})


def _misspelt(environment: Environment) -> Iterator[Defect]:
    known = {_sorted(name): name for name in _known()}
    for name in sorted(environment.keys() - set(known.values())):
        near = difflib.get_close_matches(_sorted(name), known, n=1, cutoff=NEAR)
        if near:
            yield Defect(
                f"nothing reads {name}: it looks like {known[near[0]]}, misspelt",
                f"write {known[near[0]]}, or take it out",
            )


def _sorted(name: str) -> str:
    return "_".join(sorted(name.upper().split("_")))


CHECK = Check("environment", 6, unknown_flags, rule=run)
