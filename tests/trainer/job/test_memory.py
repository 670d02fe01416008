"""The memory that is left, by what the kernel says."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.job import memory


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1073741824\n"}, 2**30),
        ({"memory.max": "max\n"}, 2**33),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, 2**29),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 2**33),
        ({}, 2**33),
    ],
)
def test_the_memory_limit(tmp_path: Path, files: dict[str, str], limit: int) -> None:
    assert memory.limit(write(tmp_path, files), total=2**33) == limit


@pytest.mark.parametrize(
    ("limit", "left", "free"),
    [("max", 3 * 2**30, 3 * 2**30), (str(2**31), 3 * 2**30, 2**30), ("0", 3 * 2**30, 0)],
)
def test_the_least_of_the_machine_and_the_container_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, left: int, free: int
) -> None:
    machine = SimpleNamespace(total=2**34, available=left)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: machine)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=2**30))
    monkeypatch.setattr(memory.psutil, "Process", lambda: process)
    assert memory.free(write(tmp_path, {"memory.max": limit})) == free
