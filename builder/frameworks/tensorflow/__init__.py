"""All that the factory knows about TensorFlow: what a second framework would have to bring.

* releases.py, tensorflow.yaml: its releases, what they were built with, and their wheels;
* probes/: programs that ask, inside an image, whether it would find its libraries, and whether what
  a training run has written can be used;
* checks/: the checks that start those programs;
* suite.py: the suites of checks that an image with TensorFlow goes through.

Two parts lie elsewhere. The files that training never loads are named in templates/drop-*.j2,
because a project may replace its templates. How versions are chosen stands in builder/spec, which
weighs TensorFlow, CUDA and the accelerator against each other.
"""

from typing import Final

MODULES: Final = ("tensorflow", "keras")
"""The modules that a program imports it by."""
