"""What the hooks of the check `compile` share: how they begin, how they answer, how a batch grows,
and work in a process of its own.

A hook lies as sitecustomize.py in a folder of its own in a container, and this module beside it, in
the packages of the factory. Both are gone from the path before the program starts.
"""

# Paths are text here, as in the probes. A finder's arguments are given.
# ruff: noqa: PTH100, PTH120, ARG002
from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

VARIABLE = "TRAINING_COMPILE"
NAME = "training_image_compile"
"""The hook, for `Job.compile` (builder/image/start/training_contract.py)."""

TRIES, SEARCH, MOST = 4, 20.0, 2**16
"""So many batches are compiled to find the largest that fits, the last one begun after so many
seconds at most, and none with more examples: a larger one is of no use to anybody."""

REFUSES = re.compile(
    "RESOURCE_EXHAUSTED|UNIMPLEMENTED|INVALID_ARGUMENT(?!: Failed to serialize)"
    "|MLIR translation rule .* not found|INTERNAL: Mosaic failed to compile"
    "|(The|Unimplemented primitive in) Pallas TPU lowering"
)
"""How the words begin by which XLA, libtpu or JAX refuses a program. Anything else may be a gap of
ours: Pallas for a GPU, for one, wants to see it."""

KINDS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def start(
    hook: str,
    take: Callable[..., None],
    framework: str = "",
    begin: Callable[[Any], None] = lambda _module: None,
) -> None:
    """Begin, and run the sitecustomize that this one hides: that of the image.

    hook: the file of the hook. take: gets the step that a program names. framework: the package
    that is waited for, "" for none. begin: gets it when it is loaded.
    """
    here = os.path.dirname(os.path.abspath(hook))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    for name in [name for name in sys.modules if name.partition(".")[0] == "builder"]:
        del sys.modules[name]  # a program may have a package of this name
    own: Any = types.ModuleType(NAME)
    own.take = take
    sys.modules[NAME] = own
    if framework:
        sys.meta_path.insert(0, Finder(framework, begin))
    found = PathFinder.find_spec("sitecustomize")
    if found is not None and found.loader is not None:
        found.loader.exec_module(util.module_from_spec(found))


class Finder:
    """A finder that finds one module alone, and lets the work begin when it is loaded.

    program: code that Python runs in its place where the module is the program (`python -m`).
    """

    def __init__(self, name: str, begin: Callable[[Any], None], program: str = "") -> None:
        self.name, self.begin, self.program = name, begin, program

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self.name else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load, code = loader.exec_module, getattr(loader, "get_code", None)

        def load_and_begin(module: Any) -> None:
            if self in sys.meta_path:  # who only looks whether it is there does not load it
                sys.meta_path.remove(self)
            loader.get_code = code
            load(module)
            try:
                self.begin(module)
            except Exception as error:
                answer({"step": "", "failed": words(error)})
                os._exit(0)

        loader.exec_module = load_and_begin
        if self.program:
            loader.get_code = lambda _name: compile(self.program, name, "exec")
        return spec


def answer(result: dict[str, Any]) -> None:
    """Write a line that builder/prove/session.py reads."""
    sys.stdout.flush()
    sys.stdout.write("\n" + json.dumps({"compile": result}) + "\n")
    sys.stdout.flush()


class EndedError(Exception):
    """Work in a process of its own that gave no answer, and why."""


def begin(work: Callable[[], Any]) -> tuple[int, int]:
    """Begin work in a process of its own; return what `end` takes. A library that aborts there is
    nobody else's, and what it prints is not seen. work: returns what JSON can write."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which are not in it: JAX's, Python's
        process = os.fork()
    if process:
        os.close(write)
        return process, read
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    done: dict[str, Any] = {"failed": "it ends"}
    try:
        done = {"done": work()}
    except Exception as error:
        done = {"failed": words(error)}
    finally:
        os.write(write, json.dumps(done).encode())
        os._exit(0)


def end(begun: tuple[int, int], seconds: float) -> Any:
    """Return what the work returned, within so many seconds. Raises EndedError."""
    process, read = begun
    text, until = b"", time.monotonic() + seconds
    while select.select([read], [], [], max(until - time.monotonic(), 0))[0]:
        if not (part := os.read(read, 2**16)):
            break
        text += part
    os.close(read)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    try:
        said = json.loads(text)
    except ValueError:
        ended = signal.Signals(os.WTERMSIG(status) or signal.SIGABRT)
        late = ended == signal.SIGKILL
        raise EndedError("it takes too long" if late else f"it aborts ({ended.name})") from None
    if "failed" in said:
        raise EndedError(said["failed"])
    return said["done"]


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def refusal(error: BaseException) -> dict[str, str]:
    """Return an error of a compiler: `refused` where the program is to blame, else `failed`."""
    text = str(error) or type(error).__name__
    return {"refused" if REFUSES.match(text) else "failed": text[:2000]}


def needs(found: dict[str, Any]) -> int:
    """Return the bytes that a step needs of one device (builder/prove/checks/compile.py)."""
    kept = found["arguments"] + found["outputs"] - found["aliased"]
    return int(kept + found["temporaries"] + found["code"])


def kind_of(tensor: str) -> str:
    """Return the type of "8x4xbf16" as our tables call it."""
    name = tensor.rpartition("x")[2]
    return "float8" if name.startswith("f8") else KINDS.get(name, name)


def grown(
    batch: int, first: int, room: int, compiled: Callable[[int], dict[str, Any]]
) -> Iterator[int]:
    """Yield batches that fit, each larger than the one before. first: bytes that one of `batch`
    examples needs. compiled: takes so many times the batch, returns what the compiler says.

    The memory of a step grows with the batch nearly linearly, so two sizes say where to look.
    """
    if not batch or first * (MOST // batch) <= room:
        return
    known, too_large, until = [(0, 0), (1, first)], 0, time.monotonic() + SEARCH
    for _ in range(TRIES):
        (lower, little), (upper, much) = known[-2:]
        slope = max((much - little) / (upper - lower), 1)
        times = int(upper + (room - much) / slope)
        if too_large:
            times = min(times, (upper + too_large) // 2)
        times = min(times, MOST // batch)
        if times <= upper or time.monotonic() > until:
            return
        tried = compiled(times)
        if "arguments" not in tried or needs(tried) > room:
            too_large = times
            continue
        known.append((times, needs(tried)))
        yield times * batch
