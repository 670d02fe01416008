"""One process in place of several: how many they are, and who says so. What such a process holds is
counted in the image (test_compile.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.frameworks import hook
from builder.frameworks.torch.probes import processes
from builder.frameworks.torch.probes.allocator import MIB
from builder.frameworks.torch.probes.processes import KNOWN_ERROR, Processes


class Torch:
    """PyTorch's process groups, which note what they are asked for."""

    def __init__(self) -> None:
        self.joined: list[tuple[str, int]] = []
        self.distributed_c10d = self.distributed = self
        self.init_process_group: Any = self.original

    def is_available(self) -> bool:
        return True

    def original(self, backend: str, store: str, rank: int, world_size: int) -> None:
        assert (store, rank) == ("a store", 0)
        self.joined.append((backend, world_size))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    fake = SimpleNamespace(FakeStore=lambda: "a store")
    monkeypatch.setattr(processes, "import_module", lambda _name: fake)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return Torch()


@pytest.mark.parametrize(
    ("told", "variable", "named", "count", "remark"),
    [
        (4, None, {}, 4, f"one of 4 processes; {KNOWN_ERROR}"),
        (4, "1", {}, 4, f"one of 4 processes; {KNOWN_ERROR}"),  # torchrun's only child
        (0, "2", {}, 2, f"one of 2 processes; {KNOWN_ERROR}"),
        (0, None, {"world_size": 8, "rank": 3}, 8, f"one of 8 processes; {KNOWN_ERROR}"),
        (0, None, {"world_size": -1}, 1, "one process, as nobody says how many there are"),
        (1, None, {}, 1, ""),
    ],
)
def test_a_program_joins_a_group_in_which_nobody_else_is(
    torch: Torch,
    monkeypatch: pytest.MonkeyPatch,
    told: int,
    variable: str | None,
    named: dict[str, int],
    count: int,
    remark: str,
) -> None:
    if variable:
        monkeypatch.setenv("WORLD_SIZE", variable)
    all_of_them = Processes(told)
    all_of_them.begin(torch)
    torch.init_process_group("nccl", **named)
    assert torch.joined == [("fake", count)]
    assert all_of_them.said == {"devices": count, "of": max(told, count), "remark": remark}


def test_a_program_that_joins_none_uses_one_of_the_devices(torch: Torch) -> None:
    four = Processes(4)
    four.begin(torch)
    assert four.said == {"devices": 1, "of": 4, "remark": ""}
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "4")
    assert Processes(0).said == {"devices": 1, "of": 1, "remark": ""}


@pytest.mark.parametrize(
    ("told", "nodes", "each", "world"),
    [(0, "1:2", "4", 8), (0, "1", "gpu", 0), (16, "2", "4", 16)],
)
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ((False, False), [sys.executable, "-u", "train", "--steps=3"]),
        ((None, False), [sys.executable, "-u", "train", "--steps=3"]),  # as accelerate passes it
        ((True, False), [sys.executable, "-u", "-m", "train", "--steps=3"]),
        ((False, True), ["train", "--steps=3"]),
    ],
)
def test_torchrun_becomes_one_process_and_tells_it_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
    torch: Torch,
    told: int,
    nodes: str,
    each: str,
    world: int,
    kind: tuple[bool | None, bool],
    command: list[str],
) -> None:
    monkeypatch.setenv(hook.VARIABLE, json.dumps({"world": told}))
    started: list[Any] = []
    monkeypatch.setattr(os, "execvp", lambda program, words: started.append((program, words)))
    torchrun, asked = SimpleNamespace(), {"nnodes": nodes, "nproc_per_node": each}
    asked |= {"training_script": "train", "training_script_args": ["--steps=3"]}
    Processes(told).begin_torchrun(torchrun)
    torchrun.run(SimpleNamespace(**asked, module=kind[0], no_python=kind[1]))
    assert started == [(command[0], command)]
    assert json.loads(os.environ[hook.VARIABLE]) == {"world": world}
    assert os.environ["WORLD_SIZE"] == "1", "as of torchrun's only process"


@pytest.mark.parametrize(
    ("words", "world", "program"),
    [
        ({"num_gpus": 4}, 4, ["--local_rank=0", "--lr=1"]),
        ({"num_gpus": 4, "num_nodes": 2, "no_local_rank": True}, 8, ["--lr=1"]),
        ({}, 0, ["--local_rank=0", "--lr=1"]),  # all that there are
    ],
)
def test_so_does_deepspeed(
    monkeypatch: pytest.MonkeyPatch,
    torch: Torch,
    words: dict[str, Any],
    world: int,
    program: list[str],
) -> None:
    monkeypatch.setenv(hook.VARIABLE, "{}")
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvp", lambda _program, words: started.append(words))
    given = {"num_nodes": -1, "num_gpus": -1, "no_local_rank": False, "module": False}
    given |= {"no_python": False, "user_script": "train.py", "user_args": ["--lr=1"]}
    deepspeed: Any = SimpleNamespace(parse_args=lambda _: SimpleNamespace(**{**given, **words}))
    Processes(0).begin_deepspeed(deepspeed)
    deepspeed.main()
    assert started == [[sys.executable, "-u", "train.py", *program]]
    assert json.loads(os.environ[hook.VARIABLE]) == {"world": world}


@pytest.mark.parametrize(
    ("words", "world", "program"),
    [
        ("mpirun -np 4 --map-by node -x PATH python train.py -n 9", 4, "python train.py -n 9"),
        ("mpirun --allow-run-as-root -H a:2,b:2 -mca plm_rsh_agent sh sh -c x", 4, "sh -c x"),
        ("mpiexec -n 2 python a.py : -n 3 python b.py", 5, "python a.py"),
        ("mpirun python train.py", 0, "python train.py"),
        ("srun -n4 --mpi=pmix python train.py", 4, "python train.py"),
        ("srun --nodes=2 --ntasks-per-node 4 python train.py", 8, "python train.py"),
        ("horovodrun -np 4 -H a:2,b:2 --gloo python train.py", 4, "python train.py"),
        ("mpirun --version", None, "mpirun --version"),
    ],
)
def test_mpirun_and_the_like_become_one_process(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    torch: Torch,
    words: str,
    world: int | None,
    program: str,
) -> None:
    """A script of its name is found first, and the launcher itself after it."""
    name, *options = words.split()
    for folder, programs in (("ours", [name]), ("image", [name, "python", "node", "sh"])):
        (tmp_path / folder).mkdir()
        for each in programs:
            (tmp_path / folder / each).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'ours'}:{tmp_path / 'image'}")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "ours" / name), *options])
    monkeypatch.setenv(hook.VARIABLE, "{}")
    for variable in " ".join(processes.VARIABLES.values()).split():
        monkeypatch.setenv(variable, "")
    began: list[list[str]] = []

    def become(_program: str, words: list[str]) -> None:
        began.append(words)
        raise SystemExit

    monkeypatch.setattr(os, "execvp", become)
    with pytest.raises(SystemExit):
        Processes(0).launch()
    assert began == [program.split()] and os.environ["PATH"] == str(tmp_path / "image")
    if world is not None:
        assert json.loads(os.environ[hook.VARIABLE]) == {"world": world}
        size, rank, _ = processes.VARIABLES[name if name in processes.VARIABLES else "mpi"].split()
        assert (os.environ[size], os.environ[rank]) == (str(world or 1), "0")
        assert Processes(0).told == (world if world > 1 else 0), "which it reads itself, too"


def test_a_launcher_that_is_not_there_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mpirun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "mpirun"), "-np", "4", "python", "a.py"])
    with pytest.raises(SystemExit, match="mpirun: command not found"):
        Processes(0).launch()


@pytest.mark.parametrize(
    ("release", "variable", "told", "buffer"),
    [
        ("0.28.1", "", 4, 128 * MIB),
        ("0.20.3", "", 4, 64 * MIB),
        ("0.28.1", "33554432", 4, 32 * MIB),
        ("0.28.1", "", 1, 0),
    ],
)
def test_horovod_is_the_first_of_its_processes_and_keeps_a_buffer(
    monkeypatch: pytest.MonkeyPatch, release: str, variable: str, told: int, buffer: int
) -> None:
    class Basics:
        """Horovod's, before it begins."""

        def init(self) -> None: ...
        def size(self) -> int: ...  # type: ignore[empty-body]

    everybody = SimpleNamespace(ranks=[])
    modules = SimpleNamespace(__version__=release, global_process_set=everybody)
    monkeypatch.setattr(processes, "import_module", lambda _name: modules)
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", variable)
    one = Processes(told)
    one.begin_horovod(SimpleNamespace(HorovodBasics=Basics))
    operations: Any = SimpleNamespace()
    one.begin_sending(operations)
    Basics().init()
    assert Basics().size() == told == len(everybody.ranks) and one.buffer == buffer
    send = operations.mpi_lib.horovod_torch_allreduce_async_torch_FloatTensor
    assert send("gradient", "gradient") != send("another", "another"), "each has its handle"
    assert one.said["devices"] == told


@pytest.mark.parametrize(
    ("processes", "cpu", "way"),
    [(4, False, "several"), (1, False, "alone"), (None, False, "alone"), (4, True, "alone")],
)
def test_accelerate_goes_the_way_of_several_gpus(
    processes: int | None, cpu: bool, way: str
) -> None:
    """It calls torchrun's `run` there."""
    ways: list[str] = []
    launch: Any = SimpleNamespace(
        simple_launcher=lambda _args: ways.append("alone"),
        multi_gpu_launcher=lambda _args: ways.append("several"),
    )
    Processes(0).begin_accelerate(launch)
    launch.simple_launcher(SimpleNamespace(num_processes=processes, cpu=cpu))
    assert ways == [way]
