"""The trials of a study as JobSets: the factory's own loop, one JobSet a trial.

A trial's result is what its program reports as cloudml-hypertune does. Our trainer also prints each
report as a line, so it is known while the trial runs. Another program is told to write into the
file of its container's termination message, and the cluster keeps the end of that file, 4096 bytes,
when the container ends. Source: kubernetes, kuberuntime_container.go, getTerminationMessage.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from builder.jobs import following, submission
from builder.jobs.description import Job, Study
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.protocol import SUCCEEDED, JobStatus, LogLine
from builder.jobs.ready import Ready
from builder.jobs.running import Note, OnJobEvent, Outcome, ReplicaLine, State, Stop
from builder.jobs.studies import loop
from builder.jobs.studies.results import StudyOutcome

POLL: Final = 2.0
"""Seconds between two looks at a trial."""
MESSAGE: Final = "/dev/termination-log"
"""The file of the termination message. Source: core/v1, Container.terminationMessagePath."""
NAME_LENGTH: Final = 58
"""Of a study's name, so that a trial's, with its number, is a job's name, too."""


@dataclass(frozen=True)
class ClusterTrials:
    """Each trial is the job with other arguments, a name, a folder and a JobSet of its own.

    ready: the job without its study. folder: on this machine, for study.json. prints: the program
    is our trainer, which prints what it reports.
    """

    place: Kubernetes
    ready: Ready
    folder: Path
    prints: bool
    poll: float = POLL
    _printed: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _jobs: dict[int, JobStatus] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.ready.job.id

    @property
    def image(self) -> str:
        return self.ready.image.reference

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.ready.job.arguments

    @property
    def several(self) -> bool:
        return self.ready.job.distributed

    def run(
        self,
        number: int,
        arguments: tuple[str, ...],
        lane: tuple[int, int],
        stop: Stop,
        on_event: OnJobEvent,
    ) -> Outcome:
        """Run one trial to its end, in the thread of the caller. The same trial is found again."""
        del lane  # the cluster has machines of its own for each trial
        began, asked = time.monotonic(), False

        def tell(line: LogLine) -> None:
            self._note(number, line)
            on_event(ReplicaLine(line.replica, line.text))

        def pause() -> None:
            nonlocal asked
            if stop.requests and not asked:
                asked = True
                self.place.cancel(sent.job)
            time.sleep(self.poll)

        request = replace(self.ready, job=self._trial(number, arguments))
        sent = submission.submit(self.place, request, locks=self.folder)
        on_event(Note("", f"{sent.job.display_name}: {sent.why or 'sent'}"))
        ended = following.follow(self.place, sent.job, tell, pause=pause)
        self._jobs[number] = ended
        return self._outcome(ended, ended.seconds or time.monotonic() - began)

    def reported(self, number: int) -> str:
        """What the trial has reported so far, as cloudml-hypertune writes it."""
        if printed := self._printed[number]:
            return "\n".join(printed)
        ended = self._jobs.get(number)
        return self.place.message(ended, "chief-0") if ended is not None else ""

    def _note(self, number: int, line: LogLine) -> None:
        told: Mapping[str, Any] = line.fields
        if told.get("event") == "trial" and "tag" in told and "value" in told:
            one = {str(told["tag"]): str(told["value"]), "global_step": str(told.get("step", 0))}
            self._printed[number].append(json.dumps(one))

    def _trial(self, number: int, arguments: tuple[str, ...]) -> Job:
        job = self.ready.job
        environment = {"CLOUD_ML_TRIAL_ID": str(number)}
        if not self.prints:
            environment["CLOUD_ML_HP_METRIC_FILE"] = MESSAGE
        values: dict[str, Any] = {
            "name": f"{job.id[:NAME_LENGTH].rstrip('-')}-{number}",
            "arguments": (*job.arguments, *arguments),
            "environment": {**job.environment, **environment},
        }
        if job.job_dir:  # {job} is the trial's own, too
            values["job_dir"] = f"{job.job_dir}/{number}"
        return job.model_copy(update=values)

    def _outcome(self, ended: JobStatus, seconds: float) -> Outcome:
        state: State = "failed"
        if ended.state in SUCCEEDED:
            state = "succeeded"
        elif ended.state == "cancelled":
            state = "cancelled"
        return Outcome(
            job=ended.display_name,
            state=state,
            exit_code=ended.exit_code,
            message=ended.error,
            seconds=seconds,
            restarts=sum(one.restarts for one in ended.replicas),
            folder=ended.output,
            replicas=(),
        )


def run_study(trials: ClusterTrials, study: Study, **options: Any) -> StudyOutcome:
    """Run a study in a cluster: `loop.run` with its options. Raises InputError, OutsideError."""
    trials.folder.mkdir(parents=True, exist_ok=True)
    return loop.run(trials, study, **options)
