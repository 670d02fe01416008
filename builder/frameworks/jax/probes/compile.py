"""Compiles a program's step for an accelerator that is not here, with the image's own compiler.

Python imports this file first (as sitecustomize) when the image's entry point starts. The program
runs on the CPU with as many devices as the accelerator has, so that its mesh is the real one. What
it gives to `jax.jit` is noted; at its end, the step is lowered for the accelerator and compiled:
by libtpu for a topology, by XLA and ptxas for a description of a GPU. Nothing is executed there.

Request, in the variable TRAINING_COMPILE:
    {"platform": "tpu" | "cuda", "topology": "v5e:2x2", "options": {...}, "batch": 48,
     "memory": bytes of the device, "taken": bytes that libraries take, "seconds": 60}
Answer, lines of JSON, the last one counts: {"compile": {"step": "train", ...}}, see `compiled`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

from builder.frameworks import cudnn, hlo, hook

OLDEST = (0, 6, 2)
"""The release of JAX that compiles for a description of a GPU."""
CANDIDATES = 8
"""So many functions are lowered to find the one that computes the most."""
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
MORE = "set XLA_CLIENT_MEM_FRACTION=.9 in the image"
SMALLER = "take a smaller batch, recompute (jax.checkpoint)"
_PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution)\b.*: \(tensor<([^>]*)>")


class Watched:
    """A function that a program has jitted: how often it was called, and with what at first."""

    def __init__(self, jitted: Any, work: Work) -> None:
        functools.update_wrapper(self, jitted)
        self.jitted, self.work = jitted, work
        self.calls = 0
        self.shapes: set[str] = set()
        self.traced: Any = None
        self.given: Any = ((), {})

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with contextlib.suppress(Exception):
            self.note(arguments, named)
        return self.jitted(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        """Trace it, as jax.stages.Wrapped says."""
        return self.jitted.trace(*arguments, **named)

    def lower(self, *arguments: Any, **named: Any) -> Any:
        """Lower it, as jax.stages.Wrapped says."""
        return self.jitted.lower(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def __get__(self, owner: Any, _kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def note(self, arguments: Any, named: Any) -> None:
        """Keep the shapes of the first call, and what JAX traces of it. A call inside of another
        jitted function is a part of that one."""
        jax = sys.modules["jax"]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return
        self.calls += 1
        shapes = jax.tree.map(shape_of, (arguments, named))
        self.shapes.add(
            str([leaf.shape for leaf in jax.tree.leaves(shapes) if hasattr(leaf, "shape")])
        )
        if self.traced is None:
            self.given = shapes
            self.traced = self.jitted.trace(*arguments, **named)
            self.work.seen.append(self)


def topology(describe: Callable[..., Any], asked: dict[str, Any]) -> Any:
    """Return the devices that the program is compiled for. Before JAX 0.9 a GPU's description has
    no limits of a block's sides, and a description with them is refused as a whole."""
    where = {"platform": asked["platform"], "topology_name": asked["topology"]}
    try:
        return describe(**where, **asked["options"])
    except Exception as error:
        if "GpuTargetConfigProto" not in str(error):
            raise
        target = re.sub(r"\s*thread_dim_limit_.*", "", asked["options"]["target_config"])
        return describe(**where, **{**asked["options"], "target_config": target})


class Work:
    """What is asked, and the functions that the program has called."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.seen: list[Watched] = []
        self.lock = threading.Lock()
        self.convolved: dict[cudnn.Convolution, bool] = {}
        """What cuDNN said of each; a larger batch is not asked again."""

    def begin(self, jax: Any) -> None:
        """Set up JAX, which was imported just now: devices, the watch on jit, the end."""
        asked = self.request
        if asked["platform"] == "cuda" and jax.__version_info__ < OLDEST:
            raise NotImplementedError(f"JAX {jax.__version__} compiles for no GPU that is not here")
        topologies = import_module("jax.experimental.topologies")
        self.topology = topology(topologies.get_topology_desc, asked)
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", len(self.topology.devices))
        watch(jax, lambda jitted: Watched(jitted, self))
        atexit.register(self.end)
        limit = threading.Timer(asked["seconds"], self.end_early)
        limit.daemon = True
        limit.start()

    def end_early(self) -> None:
        """Compile what has been seen, and end the program, if it has not come to its end itself."""
        if self.end():
            os._exit(0)

    def take(self, function: Any, examples: Any) -> None:
        """Compile the function that the program names itself, and end the program."""
        step = function if isinstance(function, Watched) else sys.modules["jax"].jit(function)
        step.note(examples, {})
        self.seen = [step]
        self.end()
        os._exit(0)

    def end(self) -> bool:
        """Compile the step and answer, once; return whether this call did."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if step := the_step(self.seen, self.request["platform"]):
                result = {**self.compiled(step), "shapes": len(step.shapes)}
                hook.answer(result)
                if "arguments" in result:
                    self.enlarge(step, result)
        except Exception as error:
            hook.answer({"step": "", "failed": hook.words(error)})
        return True

    def compiled(self, step: Watched, traced: Any = None) -> dict[str, Any]:
        """Return what the compiler says of a step: bytes of each kind on one device, operations of
        one device, the types of its products, and the calls of libraries with the types that they
        get; `refused` where the program is to blame that it does not compile, else `failed`."""
        began = time.monotonic()
        result = {"step": step.__name__, "room": self.room, "smaller": SMALLER, "more": MORE}
        try:
            lowered = (traced or step.traced).lower(lowering_platforms=(self.request["platform"],))
            result.update(self.build(lowered))
        except Exception as error:
            result.update(hook.refusal(error))
        return {**result, "seconds": round(time.monotonic() - began, 2)}

    @property
    def room(self) -> int:
        """The bytes that a step may take. Of a GPU, JAX gives three quarters to its programs, or
        the part that a variable names (docs.jax.dev, GPU memory allocation)."""
        memory, given = self.request["memory"], ""
        if self.request["platform"] == "tpu":
            return int(memory)
        for name in FRACTIONS:
            given = given or os.environ.get(name, "")
        fraction = float(given) if re.match(r"\d*\.?\d+$", given) else 0.75
        return int(min(memory * fraction, memory - self.request["taken"]))

    def build(self, lowered: Any) -> dict[str, Any]:
        """Compile a lowered program for the topology's first devices."""
        numpy, compiler = import_module("numpy"), import_module("jax._src.compiler")
        xla_client = import_module("jax._src.lib").xla_client
        count = lowered._lowering.compile_args["num_devices"]
        devices = self.topology.devices[:count]
        module, client = lowered.compiler_ir("stablehlo"), devices[0].client
        flags = {"xla_gpu_autotune_level": "0"} if self.request["platform"] == "cuda" else None
        options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=count,
            device_assignment=numpy.array([[each.id for each in devices]]),
            env_options_overrides=flags,
            backend=client,
        )
        given = (module, xla_client.DeviceList(tuple(devices)), options)
        whole = getattr(compiler, "backend_compile", None)  # until 0.9; it serializes the module
        built = whole(client, *given) if whole else client.compile(*given)
        memory, called = built.get_compiled_memory_stats(), self.called(built)
        kinds = {hook.kind_of(each) for each in _PRODUCT.findall(str(module))}
        kinds |= {
            kind for name, of in called.get("calls", {}).items() if "fmha" in name for kind in of
        }
        flops = max((lowered.cost_analysis() or {}).get("flops", 0.0) / count, 0.0)
        return {
            "devices": count,
            "of": len(self.topology.devices),
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            **called,
            "flops": flops + called.get("attended", 0),
            "types": sorted(kinds),
        }

    def called(self, built: Any) -> dict[str, Any]:
        """Return which libraries a compiled program calls, and what cuDNN says of its calls."""
        try:
            calls = hlo.calls(built.hlo_modules()[0].as_serialized_hlo_module_proto())
        except Exception as error:
            if "UNIMPLEMENTED" not in str(error):
                raise
            return {"remark": "its libraries are not known: JAX tells what they get from 0.9 on"}
        properties, asked = self.request["properties"], hlo.convolutions(calls)
        of_cudnn = cudnn.said(properties, asked, self.convolved)
        return {"calls": hlo.counted(calls), "attended": hlo.attended(calls), **of_cudnn}

    def enlarge(self, step: Watched, result: dict[str, Any]) -> None:
        """Look for the largest batch that fits, and answer with each one that does. A batch is the
        first number of an argument's shape that the program was started with."""
        jax, batch = sys.modules["jax"], self.request["batch"]
        if not any(is_batch(batch, leaf) for leaf in jax.tree.leaves(step.given)):
            return
        result["batch"] = batch

        def compiled(times: int) -> dict[str, Any]:
            scaled = jax.tree.map(functools.partial(larger, batch, times), step.given)
            return self.compiled(step, step.jitted.trace(*scaled[0], **scaled[1]))

        with contextlib.suppress(Exception):  # a step may be written for one batch
            for largest in hook.grown(batch, hook.needs(result), self.room, compiled):
                hook.answer({**result, "largest_batch": largest})


def watch(jax: Any, watched: Callable[[Any], Any]) -> None:
    """Let `jax.jit` return what `watched` makes of each function that the program jits."""
    original = jax.jit

    @functools.wraps(original)
    def jit(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        if hasattr(made, "trace"):
            return watched(made)
        return lambda function: watched(made(function))

    jax.jit = jit


def the_step(seen: list[Watched], platform: str) -> Watched | None:
    """Return the function that computes the most, of those that were called again and again."""
    often = max((each.calls for each in seen), default=0)
    again = [each for each in seen if each.calls > 1] if often > 1 else seen
    if len(again) < 2:
        return again[0] if again else None

    def flops(each: Watched) -> float:
        with contextlib.suppress(Exception):
            lowered = each.traced.lower(lowering_platforms=(platform,))
            return float((lowered.cost_analysis() or {}).get("flops", 0.0))
        return 0.0

    return max(again[:CANDIDATES], key=flops)


def shape_of(leaf: Any) -> Any:
    """Return the shape, type and sharding of an array, and anything else as it is."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    return sys.modules["jax"].ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def is_batch(batch: int, leaf: Any) -> bool:
    """Tell whether an argument holds a batch."""
    return bool(getattr(leaf, "shape", ()) and leaf.shape[0] == batch)


def larger(batch: int, times: int, leaf: Any) -> Any:
    """Return an argument's shape for a batch that is so many times larger."""
    if not is_batch(batch, leaf):
        return leaf
    shape = (batch * times, *leaf.shape[1:])
    return sys.modules["jax"].ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)


if hook.VARIABLE in os.environ:
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # it asks the driver, which is not here
    _work = Work(json.loads(os.environ[hook.VARIABLE]))
    hook.start(__file__, _work.take, "jax", _work.begin)
