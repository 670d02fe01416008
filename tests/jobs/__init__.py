"""Tests of jobs.

The official client of Kubernetes loads `kubernetes_validate` where it is installed, which takes a
second of the processor. The tests read its schemas by themselves.
"""

import sys

sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]
