"""`builder list`, `show`, `build` and `smoke`: what a person sees without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inline_snapshot import snapshot

from builder.pipeline import records
from builder.pipeline.push import LocalImage
from builder.prove import receipts
from tests.conftest import Run
from tests.pipeline.pushing import proof
from tests.pipeline.test_signing import record
from tests.shown import shown


def test_list_lines_up_its_columns(here: Path, builder: Run) -> None:
    made = replace(record(here), digest=f"sha256:{'a' * 64}")
    records.write(here, made)
    assert shown(builder("list")) == snapshot("""\
a100        A100  TensorFlow 2.21.0  not built
b200-torch  B200  PyTorch newest     not built
cpu         CPU   TensorFlow 2.21.0  built, not proven  1 B
cpu-jax     CPU   JAX newest         not built
h100        H100  TensorFlow 2.21.0  not built
h100-jax    H100  JAX newest         not built
h100-torch  H100  PyTorch newest     not built
l4          L4    TensorFlow 2.21.0  not built
t4          T4    TensorFlow 2.21.0  not built
t4-torch    T4    PyTorch newest     not built
tpu         TPU   TensorFlow 2.20.0  not built
tpu-jax     TPU   JAX newest         not built
v100        V100  TensorFlow 2.21.0  not built
v100-jax    V100  JAX newest         not built
v100-torch  V100  PyTorch newest     not built
""")
    image = LocalImage("there", made.digest, made.image_id)
    receipts.write(
        proof(image, target="cpu", accelerator="CPU"),
        records.folder(here, "cpu") / receipts.FILE,
    )
    assert shown(builder("list")).splitlines()[2] == snapshot(
        "cpu         CPU   TensorFlow 2.21.0  built and proven  1 B"
    )


LOCKED = {
    r"(?m)^    (\S+ \S+, ){3}.*": "    PACKAGES",
    r"\d+(\.\d+)? [kMG]?B": "N MB",
    r"key [0-9a-f]{16}": "key KEY",
    r"(?m)^(\S+) \d+(\.\d+){2}": r"\1 VERSION",
}
"""What each lock changes."""


def test_show_base_names_each_layer(here: Path, builder: Run) -> None:
    assert shown(builder("show", "base", "cpu"), LOCKED) == snapshot("""\
Debian bookworm
    Debian's required packages, apt, Python, certificates, and image.yaml's `apt`
    download N MB, packed N MB, unpacked N MB, key KEY
    PACKAGES
libclang VERSION
    TensorFlow and all it needs
    download N MB, packed N MB, unpacked N MB, key KEY
numpy VERSION
    TensorFlow and all it needs
    download N MB, packed N MB, unpacked N MB, key KEY
tensorflow-cpu VERSION
    TensorFlow and all it needs
    download N MB, packed N MB, unpacked N MB, key KEY
29 small wheels of tensorflow.lock
    TensorFlow and all it needs
    download N MB, packed N MB, unpacked N MB, key KEY
    PACKAGES
4 small wheels of extra.lock
    what image.yaml and the trainer add
    download N MB, packed N MB, unpacked N MB, key KEY
    PACKAGES
environment
    the user 1000, /app, /opt/venv
    download N MB, packed N MB, unpacked N MB, key KEY
7 layers: N MB to pull, N MB unpacked
""")


def test_show_base_of_nothing(here: Path, builder: Run) -> None:
    assert shown(builder("show", "base", "nothing")) == snapshot("""\
| error: no target is called 'nothing': there is no images/nothing/image.yaml
| fix:   known: a100, b200-torch, cpu, cpu-jax, h100, h100-jax, h100-torch, l4, t4,
| .. t4-torch, tpu, tpu-jax, v100, v100-jax, v100-torch
exit code 2
""")
