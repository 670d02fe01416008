"""All that the factory knows about TensorFlow.

* releases.py, tensorflow.yaml: its releases, what they were built with, and their wheels;
* stack.py, gpu_stack.py: which of its releases, of Python and of CUDA work together;
* exclude.py: files of its wheels that training never loads;
* probes/: programs that ask, inside an image, whether it would find its libraries, and whether what
  a training run has written can be used;
* checks/: the checks that start those programs;
* suite.py: the suites of checks that an image with TensorFlow goes through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from builder.frameworks import Framework
from builder.frameworks.tensorflow import exclude

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.prove.suite import Suite


def _releases() -> tuple[str, ...]:
    from builder.frameworks.tensorflow import releases

    return tuple(version for row in releases.tables().releases for version in row.versions)


def _resolve(spec: ImageSpec) -> Stack:
    from builder.frameworks.tensorflow import stack

    return stack.resolve(spec)


def _suites() -> Mapping[str, Suite]:
    from builder.frameworks.tensorflow import suite

    return suite.SUITES


def _environment(packages: Iterable[str], site: str) -> dict[str, str]:
    """TensorFlow looks for libtpu here or on the loader's path, not in the package that has it."""
    return {"TPU_LIBRARY_PATH": f"{site}/libtpu/libtpu.so"} if "libtpu" in packages else {}


FRAMEWORK: Final = Framework(
    name="tensorflow",
    title="TensorFlow",
    short="tf",
    distributions=frozenset({"tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"}),
    releases=_releases,
    resolve=_resolve,
    suites=_suites,
    exclude_nvidia=exclude.NVIDIA,
    exclude=exclude.OWN,
    environment=_environment,
)
