"""TensorBoard's packages for event files, used without TensorFlow."""

import sys
import types


def without_tensorflow() -> None:
    """Keep TensorBoard's packages from importing TensorFlow, which takes seconds.

    Reading and writing event files works without it. Call this before their import.
    """
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
