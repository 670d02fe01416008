"""Delivering what a build made: images to their registries, objects to a folder."""

from __future__ import annotations

import hashlib
import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from builder.cloudbuild.runner import workspace
from builder.cloudbuild.runner.plan import BuildPlan
from builder.cloudbuild.runner.result import Copied, Failed, Pushed
from builder.cloudbuild.runner.sandbox import OnLine, Sandbox
from builder.core import files
from builder.core.errors import OutsideError
from builder.core.retry import Passing, Retry

PUSH = Retry(attempts=3, first=1.0)
"""The attempts of a push."""


@dataclass
class Delivery:
    """Pushes and copies what a build made.

    say: takes a line of the log. check: raises if the build was ended. wait: waits for so many
    seconds, or until the build is ended.
    """

    plan: BuildPlan
    sandbox: Sandbox
    say: OnLine
    check: Callable[[], None]
    wait: Callable[[float], object]
    images: list[Pushed] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)

    def deliver(self, push: bool, artifacts: Path | None) -> None:
        """Push the images and copy the objects. Raises Failed.

        push: False leaves the images on the engine. artifacts: the folder for objects; None copies
        none.
        """
        build = self.plan.build
        if self.plan.partial:
            if build.images or build.objects:
                self.not_done.append("images and artifacts: only some steps were run")
            return
        missing = [image for image in build.images if not self.sandbox.find(image)]
        if missing:
            raise Failed(
                "FAILURE",
                "failed to find one or more images after execution of build steps: "
                + json.dumps(missing),
            )
        if (build.images and push) or build.objects:
            self.say("PUSH")
        for image in build.images if push else ():
            self._push(image)
        if build.images and not push:
            self.not_done += [f"not pushed (--no-push): {image}" for image in build.images]
        self._copy_objects(artifacts)
        self.not_done += [f"artifacts.{name}: not uploaded here" for name in build.other_artifacts]

    def _push(self, image: str) -> None:
        started = time.time()

        def attempt() -> str:
            self.check()
            self.say(f"Pushing {image}")
            try:
                return self.sandbox.push(image, self.say)
            except OutsideError as error:
                failed = Failed("FAILURE", error.message, error)
                if re.search(r"denied|unauthorized|authentication|forbidden", error.message):
                    raise failed from None
                raise Passing(error.message, final=failed) from None

        digest = PUSH.run(attempt, self.say, self.wait)
        self.say(f"{image}: digest: {digest}")
        self.images.append(Pushed(image, digest, time.time() - started))

    def _copy_objects(self, artifacts: Path | None) -> None:
        objects = self.plan.build.objects
        if objects is None:
            return
        if artifacts is None:
            self.not_done.append(f"artifacts for {objects.location}: no folder was named")
            return
        bucket = objects.location.removeprefix("gs://").strip("/")
        target = artifacts / bucket
        taken: dict[str, Copied] = {}
        for pattern in objects.paths:
            begin = len(taken)
            for file in workspace.files_of(self.sandbox, pattern):
                if workspace.matches(file.path, pattern) and file.path not in taken:
                    name = PurePosixPath(file.path).name
                    copied = Copied(
                        f"gs://{bucket}/{name}", target / name, file.save(target / name)
                    )
                    # As in gsutil, folders are dropped, and the later of two files takes the name.
                    taken = {k: v for k, v in taken.items() if v.path != copied.path}
                    taken[file.path] = copied
                    self.say(f"{file.path}: copied to {target / name}")
            if len(taken) == begin and not any(workspace.matches(path, pattern) for path in taken):
                raise Failed("FAILURE", f"artifacts: nothing in the workspace matches {pattern!r}")
        self.copied += taken.values()
        manifest = "".join(_manifest_line(one) for one in self.copied)
        files.write(target / f"artifacts-{self.plan.build_id}.json", manifest)


def _manifest_line(one: Copied) -> str:
    md5 = b64encode(hashlib.md5(one.path.read_bytes(), usedforsecurity=False).digest()).decode()
    hashes = [{"file_hash": [{"type": 2, "value": md5}]}]
    return json.dumps({"location": one.location, "file_hash": hashes}) + "\n"
