"""Carrying out a build on a local engine, as the hosted service would.

`prepare` makes a BuildPlan of a file: everything is expanded and looked up, and the engine is not
touched. `run` carries the plan out. docs/cloud-build-local.md says what the service does and where
this differs.
"""

from builder.cloudbuild.runner.host import host_access, logins
from builder.cloudbuild.runner.metadata import Caller, caller
from builder.cloudbuild.runner.plan import BuildPlan, described, prepare
from builder.cloudbuild.runner.result import Result, StepResult, timeline
from builder.cloudbuild.runner.run import run
from builder.cloudbuild.runner.sandbox import Host

__all__ = [
    "BuildPlan",
    "Caller",
    "Host",
    "Result",
    "StepResult",
    "caller",
    "described",
    "host_access",
    "logins",
    "prepare",
    "run",
    "timeline",
]
