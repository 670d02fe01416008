"""Files that the drop list leaves out: training never loads one of them."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from builder.bases.drops import DROPS, dropped
from builder.lock.model import TENSORFLOW

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


@pytest.mark.tensorflow
def test_training_loads_none_of_them(tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    below = f"{site}/"
    rules = [rule for rule in DROPS[TENSORFLOW] if rule.wheels != "libclang"]
    tops = {pattern.partition("/")[0] for rule in rules for pattern in rule.paths}
    files = [path.relative_to(site) for top in sorted(tops) for path in (site / top).rglob("*")]
    left_out = {path for path in files if dropped(path.as_posix(), rules)}
    assert any(path.is_relative_to("tensorflow/include") for path in left_out)
    assert any(path.match("numpy/*/tests/*.py") for path in left_out)
    said = subprocess.run(
        [sys.executable, "-c", TRAIN, tmp_path / "model"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    loaded = [Path(line.removeprefix(below)) for line in said.splitlines() if below in line]
    assert any(path.match("tensorflow/libtensorflow_cc.so*") for path in loaded)
    assert [path for path in loaded if path in left_out] == []
