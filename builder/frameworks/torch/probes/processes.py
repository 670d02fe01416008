"""Lets one process stand for those that train together: the others are not there.

A program that joins a process group joins PyTorch's fake one, in which nothing is sent, as the
first of all. DistributedDataParallel and `fully_shard` then run as they are, and what they hold is
this process's own: its shard, the units that are gathered, DDP's buckets. It is copied into a
container beside the hook of the check `compile`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from builder.frameworks import hook
from builder.frameworks.torch.probes.allocator import MIB

LAUNCHERS = ("torch.distributed.run", "accelerate.commands.launch", "deepspeed.launcher.runner")
"""Modules that start a program several times, each by its `main`."""
KNOWN_ERROR = "PyTorch's own tests let such a count be 10 % off"
"""test/distributed/_tools/test_fsdp2_mem_tracker.py of 2.10: `delta=0.1`, beside real GPUs."""
VARIABLES = {
    "mpi": "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK",
    "hydra": "PMI_SIZE PMI_RANK MPI_LOCALRANKID",
    "srun": "SLURM_NTASKS SLURM_PROCID SLURM_LOCALID",
    "horovodrun": "HOROVOD_SIZE HOROVOD_RANK HOROVOD_LOCAL_RANK",
}
"""What Open MPI, the mpiexec of MPICH and Intel, Slurm and Horovod tell a process: how many there
are, which one it is, and which one of its machine."""
_COUNT = re.compile(r"(?:^| )(?:--?np?|--ntasks|--num-proc)[ =]?(\d+)(?= |$)")
_EACH = re.compile(r"(?:^| )--(?:ntasks-per-node|npernode)[ =](\d+)(?= |$)")
_NODES = re.compile(r"(?:^| )(?:-N|--nodes)[ =]?(\d+)(?= |$)")
_HOSTS = re.compile(r"(?:^| )--?(?:H|hosts?)[ =](\S+)")
_VALUED = re.compile(r"--?(x|(map|rank)-by|bind-to|launcher|bootstrap|mpi|distribution)$")
_TWICE = re.compile(r"--?(g?mca|genv|env)$")
"""Options whose next words, one or two, may be names of programs: `--map-by node`."""
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
        there, self.rank = (variable(place) for place in (0, 1))
        self.told, self.count, self.joined = told or there * (there > 1), 1, False
        self.buffer = 0
        """Bytes that Horovod keeps to send gradients together."""

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
        sys.meta_path.insert(0, hook.Finder("horovod.common.basics", self.begin_horovod))
        sys.meta_path.insert(0, hook.Finder("horovod.torch.mpi_ops", self.begin_sending))
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

    def begin_horovod(self, module: Any) -> None:
        """Let Horovod take this process for the first of all."""
        basics, size = module.HorovodBasics, max(self.told, 1)

        def init(*_given: Any, **_named: Any) -> None:
            self.count, self.joined = size, True
            with contextlib.suppress(ImportError):  # before 0.23
                import_module("horovod.common.process_sets").global_process_set.ranks = [
                    *range(size)
                ]

        answers = dict.fromkeys(("size", "local_size", "_process_set_size"), size)
        answers |= dict.fromkeys(("rank", "local_rank", "cross_rank", "_process_set_rank"), 0)
        answers |= {"cross_size": 1, "is_initialized": 1, "shutdown": 0}
        for name, answer in answers.items():
            setattr(basics, name, lambda *_, _answer=answer: _answer)
        basics.init = init

    def begin_sending(self, module: Any) -> None:
        """Let Horovod send nothing: an operation of its library returns a number at once. Where
        there are others, it keeps a buffer (horovod/common/operations.cc; 64 MiB before 0.21)."""
        numbers = itertools.count()
        library = type("Library", (), {"__getattr__": lambda *_: lambda *_given: next(numbers)})
        module.mpi_lib = library()
        release = [int(each) for each in import_module("horovod").__version__.split(".")[:2]]
        size = (
            os.environ.get("HOROVOD_FUSION_THRESHOLD") or (128 if release >= [0, 21] else 64) * MIB
        )
        self.buffer = int(size) * (self.told > 1)

    def launch(self) -> None:
        """Become the program that mpirun, srun or the like was to start several times: Python runs
        a script of its name, which lies before it on the path."""
        folder, name = os.path.split(sys.argv[0])
        path = os.environ["PATH"].split(":")
        os.environ["PATH"] = ":".join(each for each in path if each != folder)
        if not shutil.which(name):
            sys.exit(f"{name}: command not found")
        parts = [
            list(part) for colon, part in itertools.groupby(sys.argv[1:], ":".__eq__) if not colon
        ]
        several = [(part, program_of(part)) for part in parts]
        if all(at == len(part) for part, at in several):
            os.execvp(name, [name, *sys.argv[1:]])  # `mpirun --version`
        part, at = several[0]
        kinds = [name] if name in VARIABLES else ["mpi", "hydra"]
        names = " ".join(VARIABLES[each] for each in kinds).split()
        self.become(part[at:], sum(started(part[:at]) for part, at in several), names)

    def begin_torchrun(self, module: Any) -> None:
        """Let torchrun become one process in place of all."""

        def become(args: Any) -> None:
            nodes = str(args.nnodes).rpartition(":")[2]
            told = [int(each) for each in (nodes, str(args.nproc_per_node)) if each.isdigit()]
            program = [*python_of(args), args.training_script, *args.training_script_args]
            self.become(program, told[0] * told[1] if len(told) == 2 else 0)

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
            program = [*python_of(args), args.user_script, *rank, *args.user_args]
            self.become(program, max(args.num_nodes, 1) * max(args.num_gpus, 0))

        module.main = become

    def become(self, command: list[str], count: int, names: Sequence[str] = ()) -> None:
        """Become the program that a launcher was to start so many times; 0 where it does not say
        how many. names: variables that the launcher sets, as VARIABLES has them."""
        request = json.loads(os.environ[hook.VARIABLE])
        request["world"] = world = self.told or count
        told = {name: str(max(world, 1) * name.endswith(("SIZE", "NTASKS"))) for name in names}
        self.announce(1, **told, **{hook.VARIABLE: json.dumps(request)})
        os.execvp(command[0], command)

    def announce(self, count: int, **more: str) -> None:
        """Set the variables of a process, as torchrun does, and more."""
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(count), **more)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")


def variable(place: int) -> int:
    """Return what a launcher says in the variables of a place of VARIABLES, 0 for nothing."""
    said = (os.environ.get(names.split()[place], "") for names in VARIABLES.values())
    return max((int(word) for word in said if word.isdigit()), default=0)


def python_of(args: Any) -> list[str]:
    """Return how a launcher of Python's starts Python, by its arguments."""
    return [] if args.no_python else [sys.executable, "-u", *["-m"] * bool(args.module)]


def program_of(words: Sequence[str]) -> int:
    """Return at which of a launcher's words the program begins: the first that can be started."""
    for at, word in enumerate(words):
        before = words[max(at - 2, 0) : at]
        named = any(map(_TWICE.match, before)) or any(map(_VALUED.match, before[-1:]))
        if not word.startswith("-") and not named and shutil.which(word):
            return at
    return len(words)


def started(options: Sequence[str]) -> int:
    """Return how many times mpirun, srun or horovodrun start a program, 0 where they do not say."""
    text = " ".join(options)
    if found := _COUNT.search(text):
        return int(found[1])
    each, nodes, hosts = (kind.search(text) for kind in (_EACH, _NODES, _HOSTS))
    if each or nodes:
        return int(each[1] if each else 1) * int(nodes[1] if nodes else 1)
    slots = (host.partition(":")[2] for host in hosts[1].split(",")) if hosts else ()
    return sum(int(slot) if slot.isdigit() else 1 for slot in slots)


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
