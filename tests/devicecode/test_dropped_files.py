"""Files that training never loads (templates/drop-*.j2): each with a reason, and really never."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = sorted((ROOT / "templates").glob("drop-*.j2"))

TRAIN = """
import sys
import keras
import numpy
import tensorflow as tf
model = keras.Sequential([keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", "mse", jit_compile=True)
model.fit(numpy.zeros((4, 8, 8, 1)), numpy.zeros((4, 2)), verbose=0)
model.export(sys.argv[1], verbose=False)
tf.saved_model.load(sys.argv[1])
mapped = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/" in line}
print(*mapped, *(str(getattr(m, "__file__", "")) for m in list(sys.modules.values())), sep="\\n")
"""


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.name)
def test_each_line_has_its_bytes_and_its_reason(file: Path) -> None:
    text = file.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) >= 7
    for line in lines:
        assert re.search(r"(?:^rm -r?f|-delete).*#\s+(\d+\.\d|-)\s+\w+", line), line


LIST_ONLY = """
rm() { shift; printf '%s\\n' "$@"; }
find() { [ "${*: -1}" = -delete ] && /usr/bin/find "${@:1:$#-1}"; }
"""
"""Names what a list would delete. With PATH empty, nothing but these two can run."""


@pytest.mark.tensorflow
def test_training_loads_none_of_them(tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    program = LIST_ONLY + (ROOT / "templates/drop-tensorflow.j2").read_text()
    done = subprocess.run(
        ["/bin/bash", "-eu", "-c", program],
        cwd=site, env={"PATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    dropped = {Path(name) for name in done.stdout.splitlines() if (site / name).exists()}
    assert Path("tensorflow/include") in dropped
    assert any(path.match("numpy/*/tests") for path in dropped)
    said = subprocess.run(
        [sys.executable, "-c", TRAIN, tmp_path / "model"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    below = f"{site}/"
    loaded = [Path(line.removeprefix(below)) for line in said.splitlines() if below in line]
    assert any(path.match("tensorflow/libtensorflow_cc.so*") for path in loaded)
    assert [path for path in loaded if {path, *path.parents} & dropped] == []
