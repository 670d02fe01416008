"""A build in the cloud: its source staged, the build created once, its log followed to the end."""

from builder.cloudbuild.submission.builds import cancel, create, get, listed, retry
from builder.cloudbuild.submission.follow import watch
from builder.cloudbuild.submission.judge import compared, judged
from builder.cloudbuild.submission.outcome import Finished, row, status
from builder.cloudbuild.submission.prepare import prepared, values
from builder.cloudbuild.submission.submit import shown, submitted

__all__ = [
    "Finished",
    "cancel",
    "compared",
    "create",
    "get",
    "judged",
    "listed",
    "prepared",
    "retry",
    "row",
    "shown",
    "status",
    "submitted",
    "values",
    "watch",
]
