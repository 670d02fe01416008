"""Which CUDA and which cuDNN JAX takes on an accelerator, and why; and the target locked so."""

from __future__ import annotations

from typing import Any

import pytest

from builder.config import compatibility, image_yaml, lockfile
from builder.config.image_yaml import ImageSpec
from builder.core.errors import InputError
from builder.prove import suites
from tests import ROOT


def spec(accelerator: str, jax: str = "newest", **fields: Any) -> ImageSpec:
    return ImageSpec(accelerator=accelerator, jax=jax, **fields)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("accelerator", "requirement", "cuda", "cudnn"),
    [
        ("V100", "jax[cuda12]==0.12.0.1", "12.9", "9.10.2.21"),
        ("T4", "jax[cuda13]==0.12.0.1", "13.5", "9.26.0.51"),
        ("H100", "jax[cuda13]==0.12.0.1", "13.5", "9.26.0.51"),
        ("B200", "jax[cuda13]==0.12.0.1", "13.5", "9.26.0.51"),
        ("TPU", "jax[tpu]==0.12.0.1", None, None),
        ("TPU-v6e", "jax[tpu]==0.12.0.1", None, None),
        ("TPU7x", "jax[tpu]==0.12.0.1", None, None),
        ("CPU", "jax==0.12.0.1", None, None),
    ],
)
def test_an_accelerator_takes_the_newest_cuda_and_cudnn_with_kernels_for_it(
    accelerator: str, requirement: str, cuda: str | None, cudnn: str | None
) -> None:
    chosen = compatibility.resolve(spec(accelerator, python="3.13"))
    assert (chosen.requirement, chosen.cuda, chosen.cudnn) == (requirement, cuda, cudnn)


def test_a_release_has_the_python_that_it_runs_on_where_none_is_written() -> None:
    for release in ("newest", "0.12", "0.12.0.1"):
        chosen = compatibility.resolve(spec("V100", release))
        assert (chosen.release, chosen.python) == ("0.12.0.1", "3.13")
    older = compatibility.resolve(spec("V100", "0.9"))
    assert (older.release, older.python) == ("0.9.2", "3.11"), "our first one, where that works"


def test_explain_says_why_it_is_this_release_this_cudnn_and_no_newer_cuda() -> None:
    held = compatibility.resolve(spec("V100", python="3.11"))
    facts = {fact.statement: fact.value for fact in held.facts}
    why = "JAX 0.12.0.1 does not run on Python 3.11: write python: 3.13"
    assert (held.release, facts["why not JAX 0.12.0.1"]) == ("0.9.2", why)
    target = image_yaml.load(ROOT, "v100-jax")
    facts = {fact.statement: fact.value for fact in compatibility.resolve(target).facts}
    assert facts["JAX 0.12.0.1, CUDA 13, on V100"] == "no kernels for 7.0"
    assert facts["JAX 0.12.0.1, CUDA 12, on V100"] == "machine code"
    assert facts["cuDNN 9.11.0.98 and newer on V100"] == "no kernels for 7.0"
    takes = "cuDNN with kernels for 7.0 (JAX 0.12.0.1 takes <10.0,>=9.10.2.21)"
    assert facts[takes] == "9.10.2.21"
    libtpu = [f.value for f in compatibility.resolve(spec("TPU")).facts if "libtpu" in f.statement]
    assert libtpu == ["==0.0.50.*"], "that its release asks for"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cuda": {"cudnn": "9.28.0.42"}}, "cuDNN 9.28.0.42 has no kernels for V100 (7.0)"),
        ({"cuda": {"cudnn": "9.3.0.75"}}, "takes cuDNN <10.0,>=9.10.2.21, not 9.3.0.75"),
        ({"cuda": {"cublas": "12.9.0.13"}}, "of JAX's CUDA only cuDNN can be chosen"),
        ({"jax": "0.10"}, "no JAX 0.10 is known"),
        ({"jax": "0.12.0.1", "python": "3.11"}, "does not run on Python 3.11"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], says: str) -> None:
    written = {"accelerator": "V100", "jax": "newest", "python": "3.13", **fields}
    with pytest.raises(InputError) as refused:
        compatibility.resolve(ImageSpec(**written))
    assert says in refused.value.message and refused.value.fix


def test_the_locked_target_has_the_only_cudnn_for_a_v100_and_one_plugin() -> None:
    lock = lockfile.read(ROOT, "v100-jax")
    assert lock.packages["nvidia-cudnn-cu12"].version == "9.10.2.21"
    ours = {name: pin.version for name, pin in lock.packages.items() if name.startswith("jax")}
    names = ("jax", "jax-cuda12-pjrt", "jax-cuda12-plugin", "jaxlib")
    assert ours == dict.fromkeys(names, "0.12.0.1")
    suite = suites.of_spec(image_yaml.load(ROOT, "v100-jax"))
    assert suite.name == "jax-trainer"
