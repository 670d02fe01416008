"""What stands in front of Python's modules, of a framework or of the accelerator."""

from __future__ import annotations

from typing import Any

import pytest

from builder.audit.audited import gpu_named
from builder.prove.checks import shadows
from builder.prove.image import Image
from builder.prove.receipts import Defect, Finding
from tests.devicecode.writer import linked
from tests.prove.reading import SITE, Files, layer, read

TORCH = f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so"
TENSORFLOW = f"{SITE}/tensorflow/python/_pywrap_tensorflow_internal.so"
JAX = f"{SITE}/jaxlib/_jax.so"
BASE: Files = {
    "usr/bin/python": (b"\x7fELF", 0o755, 0),
    "bin/sh": (b"\x7fELF", 0o755, 0),
    "app/train.py": (b"import torch\n", 0o644, 0),
    **{f"{SITE}/{name}/__init__.py": (b"", 0o644, 0) for name in ("torch", "numpy")},
}


def texts(*paths: str, text: str = "") -> Files:
    """Files of this text."""
    return {path: (text.encode(), 0o755, 0) for path in paths}


def judged(files: Files, config: dict[str, Any], *modules: str, gpu: str | None = "v100") -> Image:
    compiled = {path: (linked(), 0o755, 0) for path in modules or (TORCH,)}
    given = {"Cmd": ["python", "train.py"], "WorkingDir": "/app", **config}
    content = read(layer({**BASE, **compiled, **files}), **given).content
    return Image(content, gpu_named(gpu) if gpu else None)


def said(*args: Any, **more: Any) -> list[Defect]:
    return list(shadows.run(judged(*args, **more))[0])


ON_PATH = {"Env": ["PYTHONPATH=/src:/opt/deps"]}
BY_SCRIPT = {"Entrypoint": ["/entry.sh"]}
EMPTIES = '#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=\nexec "$@"\n'
REFUSED: list[tuple[Files, dict[str, Any], str]] = [
    (texts("app/random.py"), {}, "/app/random.py is imported for Python's own random"),
    (texts("app/types/__init__.py"), {}, "/app/types/__init__.py is imported for Python's own"),
    (texts("app/torch.py"), {}, "/app/torch.py is imported for torch: the framework"),
    (texts("app/numpy.py"), {"Cmd": ["python", "-m", "train"]}, "/app/numpy.py is imported for"),
    (texts("src/queue.py"), ON_PATH, "/src/queue.py is imported for Python's own queue"),
    (texts("src/torch/__init__.py"), ON_PATH, "/src/torch is imported, and not /opt/venv"),
    ({"entry.sh": (EMPTIES.encode(), 0o755, 0)}, BY_SCRIPT, "/entry.sh:2 says CUDA_VISIB"),
    ({"entry.sh": (b"#!/bin/sh\nJAX_PLATFORMS=cpu exec $@\n", 0o755, 0)}, BY_SCRIPT, "sh:2 says"),
    ({}, {"Cmd": ["/bin/sh", "-c", "CUDA_VISIBLE_DEVICES=-1 python train.py"]}, "s command"),
    (
        {"etc/profile.d/gpu.sh": (b"export CUDA_VISIBLE_DEVICES=''\n", 0o644, 0)},
        {"Cmd": ["sh", "-lc", "python train.py"]},
        "/etc/profile.d/gpu.sh:1 says CUDA_VISIBLE_DEVICES=''",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "config", "message"), REFUSED)
def test_what_hides_a_module_or_the_accelerator_is_refused(
    files: Files, config: dict[str, Any], message: str
) -> None:
    (defect,) = said(files, config)
    assert type(defect) is Defect and message in defect.message


FOUND: list[tuple[Files, dict[str, Any], str]] = [
    (texts("app/code.py"), {}, "/app/code.py: named as modules of Python's own"),
    (texts("opt/deps/numpy/__init__.py", "opt/deps/numpy-1.dist-info/RECORD"),
     ON_PATH, "/opt/deps/numpy is imported, and not"),
    (texts(f"{SITE}/sitecustomize.py"), {}, "runs at every start of Python"),
    (texts("app/train.py", text='import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "-1"\n'), {},
     "/app/train.py:2 hides the accelerator: os.environ["),
    (texts("app/lib/x.py", text='os.environ.setdefault("JAX_PLATFORMS", "cpu")'), {}, "y:1 hides"),
    (texts("app/train.py", text='jax.config.update("jax_platforms", "cpu")'), {}, "y:1 hides"),
    (texts("app/train.py", text='tf.config.set_visible_devices([], "GPU")'), {}, "y:1 hides"),
    (texts("app/train.py", text="tf.config.set_visible_devices([], device_type='GPU')"), {},
     "y:1 hides"),
    ({"etc/profile.d/gpu.sh": (b"export CUDA_VISIBLE_DEVICES=-1\n", 0o644, 0)}, {},
     "/etc/profile.d/gpu.sh:1 says"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "config", "message"), FOUND)
def test_what_may_hide_it_is_a_finding(files: Files, config: dict[str, Any], message: str) -> None:
    (finding,) = said(files, config)
    assert isinstance(finding, Finding) and message in finding.message


SOUND: list[tuple[Files, dict[str, Any]]] = [
    (texts("app/test.py", "app/os.py", "app/lib/random.py", "app/utils/__init__.py"), {}),
    (texts("app/random.py"), {"Cmd": ["python", "-I", "/app/train.py"], "WorkingDir": "/src"}),
    (texts("app/random.py"), {"Cmd": ["python", "-m", "train"], "WorkingDir": "/app/lib"}),
    (texts("usr/lib/python3.11/sitecustomize.py", text="x"), {}),
    (texts("app/torch/readme"), {}),
    (texts("opt/lib/python3.11/random.py"), {"Env": ["PYTHONPATH=/opt/lib/python3.11"]}),
    (texts("app/train.py", text='# os.environ["CUDA_VISIBLE_DEVICES"] = ""'), {}),
    (texts("app/train.py", text='os.environ["CUDA_VISIBLE_DEVICES"] = "0"'), {}),
    (texts("app/train.py", text='tf.config.set_visible_devices(gpus[0], "GPU")'), {}),
    (texts("app/train.py", text='tf.config.set_visible_devices([], "TPU")'), {}),
    ({"entry.sh": (b"#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=$GPU\n", 0o755, 0)}, BY_SCRIPT),
    ({"entry.sh": (b"#!/bin/sh\n# CUDA_VISIBLE_DEVICES=\nunset CUDA_VISIBLE_DEVICES\n", 0o755, 0)},
     BY_SCRIPT),
]  # fmt: skip


@pytest.mark.parametrize(("files", "config"), SOUND)
def test_what_hides_nothing_passes(files: Files, config: dict[str, Any]) -> None:
    assert said(files, config) == []


HIDES = 'tf.config.set_visible_devices([], "GPU")\n'


def test_tensorflow_that_feeds_another_framework_may_leave_the_gpu_alone() -> None:
    files = texts("app/train.py", text=HIDES)
    assert len(said(files, {}, TENSORFLOW)) == 1
    assert said(files, {}, TENSORFLOW, JAX) == []
    assert said(files, {}, TENSORFLOW, gpu=None) == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (HIDES, "refused"),
        (f"def main():\n    x = 1\n    {HIDES}", "refused"),
        (f"def main():\n    if args.cpu:\n        {HIDES}", "passed"),
    ],
)
def test_a_program_of_ours_may_hide_the_gpu_where_it_decides_so(text: str, status: str) -> None:
    files = texts("app/train.py", text=text)
    ours = {"Labels": {"training-image-factory.accelerator": "V100"}}
    assert shadows.CHECK.judge(judged(files, ours, TENSORFLOW)).status == status
    assert shadows.CHECK.judge(judged(files, {}, TENSORFLOW)).findings
