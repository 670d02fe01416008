"""Compiles what a step gives to Triton for a GPU that is not here, with the image's own compilers.

Two kinds of kernels: those that the program writes (`@triton.jit`), and those that Inductor makes
of what it gives to `torch.compile`. A launch compiles its kernel as on the GPU, and starts nothing.
A graph of `torch.compile` goes to Inductor as if its tensors were on the GPU, forward and backward,
and returns zeros. Triton and Inductor are told of the GPU in place of the driver.

The step runs in a process of its own: what happens to its tensors, and a compiler that aborts, is
nobody else's.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from builder.frameworks import hook

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SAID = re.compile(r"^ptxas .*?(?:error|fatal) *: (.*)", re.MULTILINE)
_GPU = "cuda:0"
_REFUSALS = ("Unsupported", "FailOnRecompileLimitHit")
"""Errors by which torch.compile refuses a program that lets it leave out nothing (fullgraph)."""


class Kernels:
    """The kernels of a step. count: those that were compiled. skipped: what Inductor does not take
    there, and why."""

    def __init__(self, request: dict[str, Any], of_inductor: bool = False) -> None:
        """request: that of compile.py. of_inductor: whether it is about the kernels that Inductor
        makes, and not about the program's. Raises ImportError without Triton."""
        self.device, self.of_inductor = request["properties"], of_inductor
        major, minor = map(int, request["capability"].split("."))
        self.number, self.version = major * 10 + minor, (major, minor)
        target: Any = import_module("triton.backends.compiler").GPUTarget
        self.target = target("cuda", self.number, 32)
        self.count = 0
        self.skipped = ""
        self.graph: Any = None
        """The graph that Inductor compiles now."""

    def answer(self) -> dict[str, str]:
        """Return the fields of the hook's answer."""
        whose = "Inductor's" if self.of_inductor else "its own"
        parts = [f"{whose} Triton kernels compile ({self.count})"] if self.count else []
        parts += [f"torch.compile leaves out a part: {self.skipped}"] if self.skipped else []
        return {"remark": "; ".join(parts)} if parts else {}

    def compile(self, source: Any, options: Any = None, **_given: Any) -> Any:
        """Compile as triton.compile does, and refuse what asks for more shared memory than a block
        gets: a driver says so when it loads the kernel."""
        triton: Any = import_module("triton")
        errors: Any = import_module("triton.runtime.errors")
        try:
            made = self.own_compile(source, target=self.target, options=options)
            needed, given = made.metadata.shared, self.device["maxSharedMemoryPerBlockOptin"]
            if needed > given:
                raise errors.OutOfResources(needed, given, "shared memory")
        except (OSError, ImportError):  # a gap of the image's, which the check `compiler` asks for
            raise
        except Exception as error:
            lines = [line for each in causes(error) for line in kernel_line(source, each)]
            error.refused_by_triton = [*lines[-1:]]  # type: ignore[attr-defined]
            raise
        self.count += isinstance(made, triton.compiler.CompiledKernel)
        return made

    def stand_in(self) -> None:
        """Let Triton compile for the GPU, and start nothing."""
        compiler: Any = import_module("triton.compiler")
        self.own_compile = compiler.compile
        sys.modules["triton"].compile = compiler.compile = self.compile  # type: ignore[attr-defined]
        import_module("triton.runtime").driver.set_active(self)
        jit: Any = import_module("triton.runtime.jit")
        torch, run = import_module("torch"), jit.JITFunction.run

        def mock(value: Any) -> Any:
            return jit.MockTensor(value.dtype) if isinstance(value, torch.Tensor) else value

        def launch(jitted: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            del warmup
            named = {name: mock(value) for name, value in named.items()}
            try:
                return run(jitted, *map(mock, given), grid=grid, warmup=True, **named)
            except ValueError as error:  # an option that the GPU has not
                if not hasattr(error, "refused_by_triton"):
                    error.refused_by_triton = []  # type: ignore[attr-defined]
                raise

        jit.JITFunction.run = nothing if self.of_inductor else launch

    # what Triton and its autotuner ask of a driver

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: Any = None) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return what the autotuner times each configuration with: those that do not compile are
        passed over, as on the GPU."""

        def time_it(call: Callable[[], Any], *_given: Any, **_named: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return time_it

    @property
    def utils(self) -> Any:
        limits = {"max_shared_mem": self.device["maxSharedMemoryPerBlockOptin"], "warpSize": 32}
        counts = {"multiprocessor_count": self.device["multiProcessorCount"], "max_num_regs": 65536}
        return SimpleNamespace(get_device_properties=lambda _device: {**limits, **counts})

    def tell_inductor(self) -> None:
        """Let Inductor compile each graph for the GPU."""
        torch: Any = import_module("torch")
        interface: Any = import_module("torch._dynamo.device_interface").CudaInterface
        properties = SimpleNamespace(
            name=f"sm_{self.number}",
            multi_processor_count=self.device["multiProcessorCount"],
            major=self.version[0],
            minor=self.version[1],
            regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=self.device["maxThreadsPerSM"],
            max_threads_per_block=1024,
            warp_size=32,
            total_memory=self.device["totalGlobalMem"],
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=self.device["maxSharedMemoryPerBlockOptin"],
        )
        facts: dict[str, Any] = {
            "get_device_properties": lambda _device=None: properties,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "is_available": lambda: True,
            "synchronize": lambda _device=None: None,
            "is_bf16_supported": lambda *_given, **_named: self.version[0] >= 8,
            "get_device_capability": lambda _device=None: self.version,
            "get_compute_capability": lambda _device=None: self.number,
            "is_triton_capable": lambda _device=None: self.version[0] >= 7,
            "raise_if_triton_unavailable": lambda _device=None: None,
        }
        for name, value in facts.items():
            for place in (interface, interface.Worker, torch.cuda):
                if hasattr(place, name) and not (place is torch.cuda and name == "is_available"):
                    fixed = value if place is torch.cuda else staticmethod(value)
                    setattr(place, name, fixed)
        helpers: Any = import_module("torch._inductor.runtime.triton_helpers")
        helpers.set_driver_to_gpu = lambda: None
        config: Any = import_module("torch._inductor.config")
        config.max_autotune = config.max_autotune_gemm = config.coordinate_descent_tuning = False
        config.compile_threads = 1
        making: Any = import_module("torch._inductor.async_compile")

        def triton(_compiler: Any, name: str, source: str, **_given: Any) -> Any:
            made = making._load_triton_kernel_from_source(name, source)
            try:
                made.precompile(warm_cache_only=True)  # without launchers, as Inductor's workers
            except Exception as error:
                error.refused_by_triton = [*graph_lines(self.graph, name)]  # type: ignore[attr-defined]
                raise
            return made

        making.AsyncCompile.triton = triton
        inductor: Any = import_module("torch._inductor.compile_fx")
        whole = inductor.compile_fx

        def compile_fx(*given: Any, **named: Any) -> Any:
            return whole(*given, **{**named, "inner_compile": self.take_graph})

        inductor.compile_fx = compile_fx

    def take_graph(self, graph: Any, examples: Any, **given: Any) -> Any:
        """Let Inductor compile a graph for the GPU; return what gives zeros in its place."""
        torch: Any = import_module("torch")
        inductor: Any = import_module("torch._inductor.compile_fx")
        fakes: Any = import_module("torch._subclasses.fake_tensor")
        mode = import_module("torch._guards").detect_fake_mode(examples) or fakes.FakeTensorMode()

        def there(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device(_GPU)
            if not isinstance(value, torch.Tensor):
                return value
            meta = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
            return fakes.FakeTensor(mode, meta, torch.device(_GPU))

        moved = copy.deepcopy(graph)
        for node in moved.graph.nodes:
            node.args = tuple(map(there, node.args))
            node.kwargs = {name: there(value) for name, value in node.kwargs.items()}
        moved.recompile()
        self.graph = moved
        modes: Any = import_module("torch.utils._python_dispatch")
        try:
            with modes._disable_current_modes():
                inputs = [there(each) for each in examples]
            inductor.compile_fx_inner(moved, inputs, **given)
        except Exception as error:
            if type(error).__name__ != "SkipFrame":
                raise
            self.skipped = str(error)
        (outputs,) = next(iter(reversed(graph.graph.nodes))).args
        return zeros(torch, [getattr(each, "meta", {}).get("val", each) for each in outputs])


def zeros(torch: Any, outputs: list[Any]) -> Any:
    """Return a function that returns zeros, as many as a graph's outputs, and as large."""

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape, strides = ([known(each) for each in of] for of in (value.shape, value.stride()))
        return torch.empty_strided(shape, strides, dtype=value.dtype).zero_()

    def run(inputs: list[Any]) -> list[Any]:
        inputs.clear()
        return [made(each) for each in outputs]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def known(size: Any) -> int:
    """Return a size, of a symbol the one that it had."""
    return int((size.node.hint or 1) if hasattr(size, "node") else size)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came from, the outermost first."""
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__


def kernel_line(source: Any, error: BaseException) -> Iterator[str]:
    """Yield the line of a kernel at which Triton stopped."""
    kernel, node = getattr(source, "fn", None), getattr(error, "node", None)
    if getattr(error, "src", None) == getattr(kernel, "src", "") and hasattr(node, "lineno"):
        lines, first = inspect.getsourcelines(kernel.fn)  # type: ignore[union-attr]
        begin = next(at for at, line in enumerate(lines) if line.lstrip().startswith("def "))
        file = inspect.getsourcefile(kernel.fn)  # type: ignore[union-attr]
        yield f"{file}:{first + begin + node.lineno - 1}:0 [{kernel.fn.__name__}]"  # type: ignore[union-attr]


def graph_lines(graph: Any, kernel: str) -> list[str]:
    """Return the lines of the program that became a kernel of Inductor's, innermost first."""
    traces = []
    for node in graph.graph.nodes if graph else ():
        called = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
        named = called in kernel or "triton_kernel_wrapper" in called
        if trace := node.meta.get("stack_trace"):
            traces.append((named, trace))
    chosen = [trace for named, trace in traces if named] or [trace for _, trace in traces]
    frames = _FRAME.findall(chosen[-1]) if chosen else []
    return [f"{file}:{line}:0 [{name}]" for file, line, name in reversed(frames)]


def words(error: BaseException) -> str:
    """Return what a compiler says, "" where no compiler refused: its line, then the program's,
    innermost first."""
    if type(error).__name__ in _REFUSALS:
        frames = reversed(_FRAME.findall(str(error)))
        lines = [f"{file}:{line}:0 [{name}]" for file, line, name in frames]
        return "\n".join([f"torch.compile: {str(error).splitlines()[0]}", *lines])
    chain = list(causes(error))
    own = [line for each in chain for line in getattr(each, "refused_by_triton", ())]
    if not any(hasattr(each, "refused_by_triton") for each in chain):
        return ""
    text = str(getattr(chain[-1], "error_message", "") or chain[-1])
    said = _SAID.findall(text) or text.strip().splitlines()[-1:] or [type(chain[-1]).__name__]
    trace = reversed(traceback.extract_tb(error.__traceback__))
    lines = [*own, *(f"{at.filename}:{at.lineno}:0 [{at.name}]" for at in trace)]
    return "\n".join([said[0], *lines])


def in_use() -> tuple[bool, bool]:
    """Tell whether the program may have kernels of its own, and whether PyTorch compiles some."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    return "triton" in sys.modules, bool(frames and any(frames.cached_backends.values()))


def nothing(*_given: Any, **_named: Any) -> None:
    """Stand for a launch."""


def start_nothing(request: dict[str, Any]) -> None:
    """Let a launch of a kernel do nothing in this process."""
    with contextlib.suppress(ImportError):
        jit: Any = import_module("triton.runtime.jit")
        import_module("triton.runtime").driver.set_active(Kernels(request))
        jit.JITFunction.run = nothing


def begin(request: dict[str, Any], of_inductor: bool, step: Callable[[], Any]) -> tuple[int, int]:
    """Begin to compile the kernels of a step in a process of its own; return what `end` takes."""

    def work() -> dict[str, Any]:
        try:
            kernels = Kernels(request, of_inductor)
            kernels.stand_in()
            if of_inductor:
                kernels.tell_inductor()
            import_module("torch").set_num_threads(1)  # OpenMP's threads are not in this process
            step()
            return kernels.answer()
        except Exception as error:
            if said := words(error):
                return {"refused": said}
            raise

    return hook.begin(work)


def end(begun: tuple[int, int], seconds: float) -> dict[str, str]:
    """Return what was found within so many seconds."""
    try:
        return dict(hook.end(begun, seconds))
    except hook.EndedError as error:
        return {"remark": f"not known which of its kernels compile: {error}"}
