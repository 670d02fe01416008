"""Programs that are compiled in the real images for accelerators that are not here: by libtpu for
topologies, by XLA and ptxas for descriptions of GPUs. What a compiler refuses is the program's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.core.project import tag_of
from builder.engine import Engine
from builder.facts import devices
from builder.prove import smoke
from builder.prove.checks import compile as compiling
from builder.prove.image import NotThereError
from builder.prove.session import JOB, Sandbox
from tests import ROOT, commands
from tests.frameworks.jax.broken import BEGIN, TABLE, Broken

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.long]

Compile = Callable[..., tuple[list[str], Mapping[str, Any]]]

LARGER = """
def loss(w, x):
    return jnp.sin(x @ w).sum()
from training_image_compile import take
take(jax.jit(step), (Shape((4096, 65536), "float32"), Shape((48, 4096), "float32")))
"""
CHANGES = """
def loss(w, x):
    return (x @ w).sum()
function = jax.jit(step)
for length in (3, 4, 5):
    function(jnp.ones((256, 256)), jnp.ones((length, 256)))
"""
NO_STEP = "print(jnp.ones(3).sum())"
SEVERAL = """
def loss(w, x):
    return ((x @ w) ** 2).mean()
@jax.jit
def normalize(x):
    return x / 255
evaluate = jax.jit(loss)
x, w = jnp.ones((48, 256)), jnp.ones((256, 256))
for _ in range(4):
    x = normalize(x)
    evaluate(w, x)
train(w, x)
"""


@pytest.fixture(scope="module", params=["tpu-jax", "v100-jax"])
def sandbox(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Sandbox]:
    """Containers of a target's image."""
    commands.builder("build", request.param, check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, request.param)}")
    with Sandbox(engine.client, image) as sandbox:
        sandbox.fill(smoke.RECORDS)
        yield sandbox


@pytest.fixture
def compiled(sandbox: Sandbox) -> Compile:
    """Compiles a program, else the image's own: the problems, and what was seen. search: whether
    the largest batch is asked for."""

    def run(device: str, program: str = "", topology: str = "", search: bool = False) -> Any:
        chosen = devices.devices()[device]
        batch = compiling.BATCH if search else 0
        target = compiling.CompileTarget(chosen, "jax", topology, "9.10.2", batch)
        folder = f"{JOB}/{len(sandbox.log)}"  # a new one for each run
        named = f"exec(compile({BEGIN + program!r}, '/app/train.py', 'exec'))"
        entrypoint = ["python", "-c", named] if program else None
        done = target.compile(sandbox, compiling.arguments_of(folder), entrypoint)
        problems, seen = compiling.judge(done, chosen, topology)
        return [problem.message for problem in problems], seen

    return run


ON_TPU = pytest.mark.parametrize("sandbox", ["tpu-jax"], indirect=True)
ON_GPU = pytest.mark.parametrize("sandbox", ["v100-jax"], indirect=True)


@ON_TPU
@pytest.mark.parametrize(
    ("device", "topology", "chips"),
    [
        ("TPU-v5e", "v5e:1x1", 1),
        ("TPU-v5e", "v5e:2x2", 4),
        ("TPU-v5e", "v5e:4x4", 16),
        ("TPU-v6e", "v6e:2x2", 4),
        ("TPU-v4", "v4:2x2x1", 4),
        ("TPU7x", "tpu7x:2x2x1", 8),
    ],
)
def test_the_digits_compile_for_a_slice(
    compiled: Compile, device: str, topology: str, chips: int
) -> None:
    problems, seen = compiled(device, topology=topology)
    assert problems == []
    assert (seen["step"], seen["devices"], seen["of"]) == ("train", chips, chips)
    assert 0 < seen["needs"] < seen["room"] and seen["flops"] > 1e5
    assert seen["note"].startswith(f"train compiles for {device} {topology.partition(':')[2]}; ")


@ON_GPU
@pytest.mark.parametrize("device", ["V100", "T4", "H100"])
def test_the_digits_compile_for_a_gpu(compiled: Compile, device: str) -> None:
    problems, seen = compiled(device)
    assert problems == []
    assert sum(seen["calls"]["__cudnn$convBackwardFilter"].values()) == 1, "one layer convolves"
    assert seen["types"] == ["float32"] and seen["flops"] > 1e6


@pytest.mark.parametrize(
    ("sandbox", "broken"),
    [("tpu-jax" if each.on[1] else "v100-jax", each) for each in TABLE],
    indirect=["sandbox"],
    ids=[f"{each.on[0]}-{each.name}" for each in TABLE],
)
def test_a_program_that_cannot_run_there_is_refused(compiled: Compile, broken: Broken) -> None:
    (problem,), _ = compiled(broken.on[0], broken.program, broken.on[1])
    assert re.search(broken.says, problem), problem
    if broken.works:
        assert compiled(broken.works[0], broken.program, broken.works[1])[0] == []


@ON_TPU
def test_a_step_that_changes_its_shape_is_told(compiled: Compile) -> None:
    _, seen = compiled("TPU-v5e", CHANGES)
    assert "; XLA compiles it again for each of the 3 shapes that it got" in seen["note"]


@ON_GPU
def test_a_gpu_gives_three_quarters_or_what_a_variable_says(compiled: Compile) -> None:
    memory = devices.devices()["V100"].memory
    assert compiled("V100", SEVERAL)[1]["room"] == memory * 3 // 4
    half = "import os\nos.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'] = '.5'\n"
    assert compiled("V100", half + SEVERAL)[1]["room"] == memory // 2
    most = half.replace(".5", ".99")
    assert compiled("V100", most + SEVERAL)[1]["room"] == memory - 1050 * 2**20


@ON_GPU
def test_the_largest_batch_that_fits_is_compiled_and_a_little_more_is_not(
    compiled: Compile,
) -> None:
    _, seen = compiled("T4", LARGER, search=True)
    assert f"; a batch of {seen['largest_batch']:,} fits" in seen["note"]
    times = seen["largest_batch"] // compiling.BATCH
    assert 10 < times < 65536 // compiling.BATCH
    assert compiled("T4", LARGER.replace("(48,", f"({48 * times},"))[0] == []
    assert compiled("T4", LARGER.replace("(48,", f"({48 * times * 2},"))[0] != []


@ON_TPU
def test_the_step_is_what_computes_the_most_and_uses_one_chip(compiled: Compile) -> None:
    _, seen = compiled("TPU-v5e", SEVERAL)
    assert seen["step"] == "step"
    assert "; it uses 1 of the 4 devices" in seen["note"]


@ON_TPU
def test_a_program_without_a_step_was_not_asked(compiled: Compile) -> None:
    with pytest.raises(NotThereError, match="not asked: "):
        compiled("TPU-v5e", NO_STEP)


@ON_TPU
def test_builder_prove_compiles_for_a_slice_that_it_names(sandbox: Sandbox) -> None:
    assert sandbox
    done = commands.builder("prove", "tpu-jax", "--topology", "v5e:2x4", "--json", check=True)
    (check,) = (one for one in json.loads(done.stdout)["checks"] if one["check"] == "compile")
    assert check["status"] == "passed"
    assert check["note"].startswith("train compiles for TPU-v5e 2x4; needs ")


@ON_TPU
def test_a_jobs_own_batch_is_compiled_for_the_slice_that_it_names(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    assert sandbox
    file = tmp_path / "slice.yaml"
    machine = "project: my-project\nregion: us-central1\nmachine: ct5lp-hightpu-4t\ntopology: 2x4\n"
    arguments = "arguments: {records: 'gs://b/records', steps: 2000, batch-size: 256}\n"
    file.write_text(f"image: tpu-jax\n{machine}{arguments}")
    done = commands.builder("job", "render", str(file), "--check", check=True)
    assert "note: train compiles for TPU-v5e 2x4; needs " in done.stderr
    flags = "--xla_dump_to=/nowhere --xla_tpu_scoped_vmem_limit_kib=32768"
    own = file.read_text()
    file.write_text(f"{own}environment: {{LIBTPU_INIT_ARGS: '{flags}', JAX_PLATFORM_NAME: tpu}}\n")
    done = commands.builder("job", "render", str(file), "--check", check=True)
    assert "note: train compiles for TPU-v5e 2x4; needs " in done.stderr
    file.write_text(f"{own}environment: {{LIBTPU_INIT_ARGS: --xla_tpu_none=1}}\n")
    done = commands.builder("job", "render", str(file), "--check")
    assert done.returncode == 4 and "flag 'xla_tpu_none'" in done.stderr
    file.write_text(own.replace("256", "6"))
    done = commands.builder("job", "render", str(file), "--check")
    assert done.returncode == 4 and done.stdout == ""
    assert "error: slice: on the devices of TPU-v5e 2x4 the program ends: " in done.stderr
    assert "(train.py:" in done.stderr
