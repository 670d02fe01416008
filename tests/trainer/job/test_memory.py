"""The memory that is left, by what the kernel says."""

from pathlib import Path

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
