"""Compiles a program's training step for a GPU that is not here, with XLA.

Python imports this file first (as sitecustomize) when the image's entry point starts. The program
runs on the CPU and sees one GPU more, so that it decides as it would there: Keras compiles a model
with XLA where there is a GPU. The first function that computes gradients is the step: what
`tf.function` or a strategy's `run` gets. It is traced, and nothing of it runs. TensorFlow makes HLO
of it, and the plugin in the request compiles that: TensorFlow's own XLA compiles for no GPU that is
not there.

Request, in the variable TRAINING_COMPILE:
    {"options": {"target_config": text}, "plugin": its file, "compiler": its name, "batch": 48,
     "capability": "7.0", "memory": bytes of the device, "taken": bytes that libraries take}
Answer, lines of JSON, the last one counts: {"compile": {"step": "train", ...}}, see `compiled`.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH113, PTH118
from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import re
import sys
import time
from importlib import import_module
from typing import Any

from builder.frameworks import cudnn, hlo, hook, pjrt
from builder.frameworks.tensorflow.probes import convolutions

SMALLER = "take a smaller batch, recompute (tf.recompute_grad)"
REFUSES = re.compile("Detected unsupported operations|must be a compile-time constant")
"""What TensorFlow says of a program that XLA does not compile on any device."""
SETTERS = (
    "set_visible_devices",
    "set_logical_device_configuration",
    "set_virtual_device_configuration",
    "set_memory_growth",
)
"""Functions of tf.config that get a device, or several."""


class Work:
    """What is asked, and what is known of the program so far."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.tracing = False
        """Whether a function is traced that may be the step."""
        self.learns = self.jitted = False
        """Whether what is traced computes gradients, and whether XLA compiles it, or a part."""
        self.known: list[Any] = []
        """The functions that were looked at."""
        self.trouble = ""
        """Why a function could not be traced."""
        self.room = request["memory"] - request["taken"]
        self.calls: list[hlo.Call] = []
        """Of libraries, in the program that was compiled last."""

    def begin(self, tf: Any) -> None:
        """Set up TensorFlow, which was imported just now."""
        self.tf = tf
        self.show_a_gpu(tf.config)
        self.kind = type(tf.function(lambda: None))
        called, run = self.kind.__call__, tf.distribute.Strategy.run
        gradient = tf.GradientTape.gradient

        @functools.wraps(called)
        def call(function: Any, *arguments: Any, **named: Any) -> Any:
            self.look(function, arguments, named, bool(getattr(function, "_jit_compile", False)))
            return called(function, *arguments, **named)

        @functools.wraps(run)
        def run_each(own: Any, fn: Any, args: Any = (), kwargs: Any = None, **more: Any) -> Any:
            @functools.wraps(fn)
            def step(*arguments: Any, **named: Any) -> Any:
                return run(own, fn, args=arguments, kwargs=named, **more)

            if not self.tracing and self.is_new(getattr(fn, "__func__", fn)):
                self.look(tf.function(step), args, kwargs or {}, False)
            return run(own, fn, args=args, kwargs=kwargs, **more)

        @functools.wraps(gradient)
        def differentiate(*arguments: Any, **named: Any) -> Any:
            self.learns = True
            return gradient(*arguments, **named)

        atexit.register(self.end)
        self.kind.__call__, tf.distribute.Strategy.run = call, run_each
        tf.GradientTape.gradient = differentiate

    def end(self) -> None:
        """Answer at the end of a program in which no step was seen."""
        if self.trouble:
            hook.answer({"step": "", "failed": self.trouble})

    def show_a_gpu(self, config: Any) -> None:
        """Let the program see a GPU, which it may set up."""
        gpu = config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
        major, minor = map(int, self.request["capability"].split("."))
        details = {"device_name": "GPU", "compute_capability": (major, minor)}

        def listed(original: Any) -> Any:
            def devices(device_type: Any = None) -> Any:
                found = original(device_type)
                return found if device_type not in (None, "GPU") else [*found, gpu]

            return devices

        def ignoring(original: Any, answer: Any = None) -> Any:
            def function(device: Any, *arguments: Any, **named: Any) -> Any:
                if device is not gpu and gpu not in (device if isinstance(device, list) else ()):
                    return original(device, *arguments, **named)
                self.limit(*arguments)
                return answer

            return function

        for place in (config, config.experimental):
            for name in SETTERS:
                if hasattr(place, name):
                    setattr(place, name, ignoring(getattr(place, name)))
            for name in ("list_physical_devices", "get_visible_devices"):
                if hasattr(place, name):
                    setattr(place, name, listed(getattr(place, name)))
        config.experimental.get_device_details = ignoring(
            config.experimental.get_device_details, details
        )

    def limit(self, configurations: Any = None, *_: Any) -> None:
        """Note how much memory the program lets TensorFlow take, in MB."""
        given = configurations if isinstance(configurations, list) else []
        for most in (getattr(each, "memory_limit", None) for each in given):
            self.room = min(self.room, int(most * 2**20)) if most else self.room

    def look(self, function: Any, arguments: Any, named: Any, jitted: bool) -> None:
        """Trace a function that is called, and compile it if it is the step; the program then ends.

        One that is called while another is traced is a part of that one.
        """
        if self.tracing:
            self.jitted |= jitted
            return
        if not self.has_a_batch(arguments, named) or not self.is_new(function):
            return
        self.tracing, self.learns, self.jitted = True, False, jitted
        try:
            # as tf.init_scope, which lets no tape record
            with import_module("tensorflow.python.eager.context").eager_mode():
                specs = self.specs(arguments, named)
                concrete = function.get_concrete_function(*specs[0], **specs[1])
        except Exception as error:  # the program's own call may go well
            self.trouble = f"{type(error).__name__}: {str(error).strip()[-500:].splitlines()[-1]}"
        else:
            if self.learns:
                self.finish(function, concrete, specs)
        finally:
            self.tracing = False

    def is_new(self, function: Any) -> bool:
        """Tell whether a function was not looked at, and note it."""
        new = all(each is not function for each in self.known)
        if new:
            self.known.append(function)
        return new

    def take(self, function: Any, examples: Any) -> None:
        """Compile the function that the program names itself, and end the program."""
        step = function if isinstance(function, self.kind) else self.tf.function(function)
        self.tracing, self.jitted = True, bool(getattr(step, "_jit_compile", False))
        specs = self.specs(examples, {})
        try:
            concrete = step.get_concrete_function(*specs[0])
        except Exception as error:
            hook.answer({"step": name_of(function), "failed": hook.words(error)})
            os._exit(0)
        self.finish(step, concrete, specs)

    def finish(self, function: Any, concrete: Any, specs: Any) -> None:
        """Answer what the compiler says of the step, and end the program."""
        step = {"step": name_of(function), "uncompiled": not self.jitted}
        try:
            found = {**step, **self.compiled(concrete)}
            hook.answer(found)
            found.update(self.ask_cudnn(concrete.graph))
            hook.answer(found)
            if "arguments" in found and "refused" not in found:
                self.enlarge(function, specs, found)
        except Exception as error:
            hook.answer({**step, "failed": hook.words(error)})
        os._exit(0)

    def compiled(self, concrete: Any) -> dict[str, Any]:
        """Return what the compiler says of a traced step: bytes of each kind, operations, the types
        of its products, and the calls of libraries with the types that they get; `refused` where
        the program is to blame that it does not compile, else `failed`."""
        began = time.monotonic()
        result: dict[str, Any] = {"room": self.room, "smaller": SMALLER}
        result["compiler"] = self.request["compiler"]
        try:
            require_shapes(concrete.inputs)
            result.update(self.build(self.hlo(concrete)))
        except Exception as error:
            found, text = hook.refusal(error), str(error)
            if self.jitted and (where := REFUSES.search(text)):
                found = {"refused": text[where.start() :][:2000]}
            result.update(found if self.jitted else {"failed": text[:2000]})
        return {**result, "seconds": round(time.monotonic() - began, 2)}

    def ask_cudnn(self, graph: Any) -> dict[str, str]:
        """Return what cuDNN says of the step's convolutions: those that XLA calls where the program
        lets it compile, else those that TensorFlow's own kernels call."""
        own = convolutions.of_graph(graph, self.request["capability"])
        asked = hlo.convolutions(self.calls) if self.jitted else own
        return cudnn.said(self.request["properties"], asked)

    def hlo(self, concrete: Any) -> bytes:
        """Return the HLO of a traced function, a serialized HloModuleProto."""
        name = "tensorflow.python.eager.polymorphic_function.compiler_ir"
        lowered = import_module(name).from_concrete_function(concrete)
        content: bytes = lowered(stage="hlo_serialized")
        return content

    def build(self, content: bytes) -> dict[str, Any]:
        """Compile HLO."""
        module = import_module("tensorflow.compiler.xla.service.hlo_pb2").HloModuleProto()
        module.ParseFromString(content)
        sizes, optimized = self.compiler.compile(content)
        self.calls = hlo.calls(optimized)
        products = [each for each in instructions(module) if each[0].opcode in FLOPS]
        return {
            **sizes,
            "flops": sum(FLOPS[each.opcode](each, operands) for each, operands in products),
            "types": sorted({hlo.kind(operands[0].shape.element_type) for _, operands in products}),
            "calls": hlo.counted(self.calls),
        }

    @functools.cached_property
    def compiler(self) -> pjrt.Compiler:
        """XLA for the device, with the ptxas of the image."""
        flags = {"xla_gpu_autotune_level": "0"}
        if cuda := cuda_folder():
            flags["xla_gpu_cuda_data_dir"] = cuda
        target = self.request["options"]["target_config"]
        return pjrt.Compiler(self.request["plugin"], target, flags)

    def enlarge(self, function: Any, specs: Any, found: dict[str, Any]) -> None:
        """Look for the largest batch that fits, and answer with each one that does."""
        found["batch"] = batch = self.batch_of(specs)

        def compiled(times: int) -> dict[str, Any]:
            larger = self.tf.nest.map_structure(
                lambda leaf: self.spec(leaf, batch, times * batch), specs
            )
            return self.compiled(function.get_concrete_function(*larger[0], **larger[1]))

        with contextlib.suppress(Exception):  # a step may be written for one batch
            for largest in hook.grown(batch, hook.needs(found), self.room, compiled):
                hook.answer({**found, "largest_batch": largest})

    def has_a_batch(self, arguments: Any, named: Any) -> bool:
        """Tell whether arguments hold tensors, and nothing that yields some."""
        leaves, dataset = self.tf.nest.flatten((arguments, named)), self.tf.data.Dataset
        yields = (hasattr(each, "__next__") or isinstance(each, dataset) for each in leaves)
        return not any(yields) and any(getattr(each, "shape", None) is not None for each in leaves)

    def specs(self, arguments: Any, named: Any) -> Any:
        """Return arguments with shapes in place of tensors."""
        return self.tf.nest.map_structure(self.spec, (tuple(arguments), dict(named)))

    def spec(self, leaf: Any, old: Any = None, new: int = 0) -> Any:
        """Return the shape and type of a tensor, and anything else as it is. A first number that is
        not known, or is `old`, becomes the batch."""
        tf = self.tf
        if isinstance(leaf, tf.Variable) or not hasattr(leaf, "dtype"):
            return leaf
        shape = tf.TensorShape(leaf.shape)
        if shape.rank and shape[0] == old:
            shape = tf.TensorShape([new or self.request["batch"]]).concatenate(shape[1:])
        return tf.TensorSpec(shape, leaf.dtype)

    def batch_of(self, specs: Any) -> int:
        """Return the first number of all shapes, 0 where they differ."""
        leaves = (leaf for leaf in self.tf.nest.flatten(specs) if hasattr(leaf, "shape"))
        first = {leaf.shape[0] for leaf in leaves if leaf.shape.rank}
        return int(first.pop() or 0) if len(first) == 1 else 0


def name_of(function: Any) -> str:
    """Return the name of a function, of tf.function too."""
    return str(getattr(function, "__name__", "") or "step")


def require_shapes(tensors: Any) -> None:
    """Raise ValueError for a tensor whose shape is not known."""
    if changing := [each.shape for each in tensors if not each.shape.is_fully_defined()]:
        raise ValueError(f"its shape changes ({changing[0]}), and XLA compiles it again for each")


def cuda_folder() -> str:
    """Return the folder of the image that has bin/ptxas, "" for none."""
    wheels = (os.path.join(folder, "nvidia", "cuda_nvcc") for folder in sys.path)
    folders = (*wheels, "/usr/local/cuda")
    return next((each for each in folders if os.path.isfile(f"{each}/bin/ptxas")), "")


def instructions(module: Any) -> list[tuple[Any, list[Any]]]:
    """Return each instruction of an HloModuleProto, with those that it takes."""
    found = []
    for computation in module.computations:
        known = {each.id: each for each in computation.instructions}
        found += [(each, [known[i] for i in each.operand_ids]) for each in known.values()]
    return found


def of_dot(each: Any, operands: list[Any]) -> int:
    """Return the operations of a product of matrices."""
    contracted = each.dot_dimension_numbers.lhs_contracting_dimensions
    sizes = [operands[0].shape.dimensions[at] for at in contracted]
    return 2 * product(each.shape.dimensions) * product(sizes)


def of_convolution(each: Any, operands: list[Any]) -> int:
    """Return the operations of a convolution: those with padding and with holes are not done."""
    at, image, kernel = each.convolution_dimension_numbers, operands[0], operands[1]
    count: int = product(each.shape.dimensions)
    count *= kernel.shape.dimensions[at.kernel_input_feature_dimension]
    places = zip(  # noqa: B905 - Python 3.8
        each.window.dimensions, at.input_spatial_dimensions, at.output_spatial_dimensions
    )
    for window, source, target in places:
        size, made = image.shape.dimensions[source], each.shape.dimensions[target]
        count = count // made * taken(window, size, made)
    return 2 * count


def taken(window: Any, size: int, made: int) -> int:
    """Return how often a window of one dimension meets a number, over all its places."""
    count = 0
    for place in range(made):
        for part in range(window.size):
            at = place * window.stride + part * window.window_dilation - window.padding_low
            count += at % window.base_dilation == 0 and 0 <= at // window.base_dilation < size
    return count


def product(numbers: Any) -> int:
    """Return the product of numbers."""
    return int(math.prod(numbers))


FLOPS = {"dot": of_dot, "convolution": of_convolution}


if hook.VARIABLE in os.environ:
    _work = Work(json.loads(os.environ[hook.VARIABLE]))
    hook.start(__file__, _work.take, "tensorflow", _work.begin)
