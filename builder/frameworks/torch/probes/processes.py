"""Lets one process stand for those that train together: the others are not there.

A program that joins a process group joins PyTorch's fake one, in which nothing is sent, as the
first of all. DistributedDataParallel and `fully_shard` then run as they are, and what they hold is
this process's own: its shard, the units that are gathered, DDP's buckets. It is copied into a
container beside the hook of the check `compile`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from builder.frameworks import hook

LAUNCHERS = ("torch.distributed.run", "accelerate.commands.launch", "deepspeed.launcher.runner")
"""Modules that start a program several times, each by its `main`."""
KNOWN_ERROR = "PyTorch's own tests let such a count be 10 % off"
"""test/distributed/_tools/test_fsdp2_mem_tracker.py of 2.10: `delta=0.1`, beside real GPUs."""
_WRAPPERS = {"DTensor", "AsyncCollectiveTensor"}
_PROPAGATION = (
    "torch.distributed.tensor._sharding_prop",
    "torch.distributed._tensor.sharding_prop",
)
"""Where DTensor works out what an operation gives, today and before PyTorch 2.5."""


class Processes:
    """Those of the program's job. count: of the group that it joined, 1 for none."""

    def __init__(self, told: int) -> None:
        """told: how many there are, 0 where nobody says so."""
        self.told, self.count, self.joined = told, 1, False

    @property
    def said(self) -> dict[str, Any]:
        """Return what the answer has of them: how many are used, how many there are, a remark."""
        remark = f"one of {self.count} processes; {KNOWN_ERROR}" if self.count > 1 else ""
        if self.count == 1 and self.joined and not self.told:
            remark = "one process, as nobody says how many there are"
        return {"devices": self.count, "of": max(self.told, self.count), "remark": remark}

    def begin(self, torch: Any) -> None:
        """Take the place of the process group of PyTorch, which was imported just now."""
        if self.told > 1:
            self.announce(self.told)
        if not torch.distributed.is_available():
            return
        places = (torch.distributed, torch.distributed.distributed_c10d)
        original = places[0].init_process_group

        def join(*_given: Any, **named: Any) -> None:
            fake = import_module("torch.testing._internal.distributed.fake_pg")
            told = max(named.get("world_size", -1), 0) or int(os.environ.get("WORLD_SIZE", "1"))
            self.count, self.joined = told, True
            original("fake", store=fake.FakeStore(), rank=0, world_size=told)
            with contextlib.suppress(Exception):
                self.answer_ddp(torch)

        meshes = sys.modules.get("torch.distributed.device_mesh")
        for place in filter(None, (*places, meshes)):
            place.init_process_group = join
        begins = (self.begin_torchrun, self.begin_accelerate, self.begin_deepspeed)
        for name, begin in zip(LAUNCHERS, begins, strict=True):
            program = f"from {name} import main\nmain()"
            sys.meta_path.insert(0, hook.Finder(name, begin, program))

    def answer_ddp(self, torch: Any) -> None:
        """Give DDP its sums where the step runs with real tensors, for the kernels of
        torch.compile: those of the fake group are None."""
        self.library = torch.library.Library("c10d", "IMPL")
        add = torch.ops.c10d.allreduce_.default

        def answer(*given: Any) -> Any:
            return communicated(torch, add, given)

        self.library.impl("allreduce_", answer, "CPU", allow_override=True)

    def begin_torchrun(self, module: Any) -> None:
        """Let torchrun become one process in place of all."""

        def become(args: Any) -> None:
            nodes = str(args.nnodes).rpartition(":")[2]
            told = [int(each) for each in (nodes, str(args.nproc_per_node)) if each.isdigit()]
            program = [args.training_script, *args.training_script_args]
            self.become(args, program, told[0] * told[1] if len(told) == 2 else 0)

        module.run = become

    def begin_accelerate(self, module: Any) -> None:
        """Let accelerate go the way that it goes on several GPUs, which is that of torchrun."""
        alone, several = module.simple_launcher, module.multi_gpu_launcher

        def launch(args: Any) -> None:
            (several if (args.num_processes or 0) > 1 and not args.cpu else alone)(args)

        module.simple_launcher = launch

    def begin_deepspeed(self, module: Any) -> None:
        """Let deepspeed become one process in place of all: it names its GPUs, or takes all."""

        def become(given: Any = None) -> None:
            args = module.parse_args(given)
            rank = [] if args.no_local_rank else ["--local_rank=0"]
            program = [args.user_script, *rank, *args.user_args]
            self.become(args, program, max(args.num_nodes, 1) * max(args.num_gpus, 0))

        module.main = become

    def become(self, args: Any, program: list[str], count: int) -> None:
        """Become the program that a launcher was to start so many times; 0 where it does not say
        how many. args: the launcher's."""
        request = json.loads(os.environ[hook.VARIABLE])
        request["world"] = self.told or count
        self.announce(1, **{hook.VARIABLE: json.dumps(request)})
        python = [] if args.no_python else [sys.executable, "-u", *["-m"] * bool(args.module)]
        command = [*python, *program]
        os.execvp(command[0], command)

    def announce(self, count: int, **more: str) -> None:
        """Set the variables of a process, as torchrun does, and more."""
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(count), **more)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")


def is_wrapped(kinds: Any) -> bool:
    """Tell whether an operation is one of tensors that hold those of this process, which counts."""
    return any(each.__name__ in _WRAPPERS for each in kinds)


def communicated(torch: Any, function: Any, given: Any) -> Any:
    """Return what a collective operation of `c10d` gives: its tensors as they are, and work that is
    done."""
    tensors = given[0] if given else []
    done = torch.futures.Future()
    done.set_result(tensors if isinstance(tensors, list) else [tensors])
    work = torch._C._distributed_c10d._create_work_from_future(done).boxed()
    return {0: None, 1: work}.get(len(function._schema.returns), (tensors, work))


@contextlib.contextmanager
def counted(torch: Any, resized: Callable[[Any], None]) -> Iterator[None]:
    """Let FSDP say which storages it gives away and takes again (`resized` gets each), and leave
    out what no device does: what DTensor works out, and DDP, which writes numbers."""
    modes: Any = import_module("torch.utils._python_dispatch")
    resize = torch.UntypedStorage.resize_

    def resizing(storage: Any, size: int) -> Any:
        made = resize(storage, size)
        resized(storage)
        return made

    def outside(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            with modes._disable_current_modes():
                return function(*given, **named)

        return call

    found = [(torch.UntypedStorage, "resize_", resize, resizing)]
    if torch.distributed.is_available():
        reducer = torch.distributed.Reducer
        places = [(reducer, "_rebuild_buckets")]
        for module in filter(None, map(sys.modules.get, _PROPAGATION)):
            kind: Any = module.ShardingPropagator
            meta = "_propagate_tensor_meta"
            places += [(kind, name) for name in vars(kind) if name.startswith(meta)]
        originals = [(owner, name, getattr(owner, name)) for owner, name in places]
        found += [(owner, name, each, outside(each)) for owner, name, each in originals]
    for owner, name, _, other in found:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for owner, name, original, _ in found:
            setattr(owner, name, original)
