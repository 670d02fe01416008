"""Delivering what a build made: images to their registries, objects to a folder."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cloudbuild_local.errors import OutsideError
from cloudbuild_local.runner.engine import OnLine
from cloudbuild_local.runner.plan import WORKSPACE, BuildPlan
from cloudbuild_local.runner.result import BuildEnd
from cloudbuild_local.runner.sandbox import Sandbox

ATTEMPTS = 3
"""How often an image is pushed."""


@dataclass
class Delivery:
    """Pushes and copies what a build made."""

    plan: BuildPlan
    sandbox: Sandbox
    say: OnLine
    """Takes a line of the log."""
    pause: Callable[[float], None]
    """Waits for so many seconds; raises if the build was ended."""
    images: list[tuple[str, str]] = field(default_factory=list)
    copied: list[dict[str, Any]] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)

    def deliver(self, push: bool, artifacts: Path | None) -> None:
        """Push the images and copy the objects. Raises BuildEnd.

        push: False leaves the images on the engine. artifacts: the folder for objects; None copies
        none.
        """
        build = self.plan.build
        if self.plan.partial:
            if build.images or build.objects:
                self.not_done.append("images and artifacts: only some steps were run")
            return
        missing = [image for image in build.images if not self.sandbox.engine.image(image)]
        if missing:
            what = "failed to find one or more images after execution of build steps: "
            raise BuildEnd("FAILURE", what + json.dumps(missing))
        if (build.images and push) or build.objects:
            self.say("PUSH")
        for image in build.images if push else ():
            digest = self._push(image)
            self.say(f"{image}: digest: {digest}")
            self.images.append((image, digest))
        if not push:
            self.not_done += [f"not pushed (--no-push): {image}" for image in build.images]
        self._copy_objects(artifacts)
        self.not_done += [f"artifacts.{name}: not uploaded here" for name in build.other_artifacts]

    def _push(self, image: str) -> str:
        for attempt in range(ATTEMPTS):
            self.pause(2.0 * attempt)
            self.say(f"Pushing {image}")
            try:
                return self.sandbox.engine.push(image, self.say)
            except OutsideError as error:
                refused = re.search(r"denied|unauthorized|authentication|forbidden", error.message)
                if refused or attempt == ATTEMPTS - 1:
                    raise BuildEnd("FAILURE", error.message, error) from None
                self.say(f"{error.message}; trying again")
        raise AssertionError("unreachable")

    def _copy_objects(self, artifacts: Path | None) -> None:
        objects = self.plan.build.objects
        if not objects:
            return
        if artifacts is None:
            return
        bucket = objects["location"].removeprefix("gs://").strip("/")
        target = artifacts / bucket
        copies: dict[str, str] = {}  # object's name -> path in the workspace
        for pattern in objects["paths"]:
            for path, content, mode in _files(self.sandbox, pattern):
                if matches(path, pattern) and path not in copies.values():
                    # As in gsutil, folders are dropped, and the later of two files takes the name.
                    name = PurePosixPath(path).name
                    copies[name] = path
                    _save(content, target / name, mode)
                    self.say(f"{path}: copied to {target / name}")
            if not any(matches(path, pattern) for path in copies.values()):
                what = f"artifacts: nothing in the workspace matches {pattern!r}"
                raise BuildEnd("FAILURE", what)
        for name in copies:
            row = {"location": f"gs://{bucket}/{name}", "path": str(target / name)}
            self.copied.append({**row, "bytes": (target / name).stat().st_size})


def _files(sandbox: Sandbox, pattern: str) -> Iterator[tuple[str, IO[bytes], int]]:
    """Yield path, content and mode of the files in the folder that a pattern begins with."""
    fixed = re.split(r"[*?\[]", _relative(pattern))[0]
    start = PurePosixPath(WORKSPACE) / fixed.rpartition("/")[0].lstrip("/")
    for member, content in sandbox.read(str(start)):
        # an archive's names begin with the name of its folder
        yield str((start.parent / member.name).relative_to(WORKSPACE)), content, member.mode


def _save(content: IO[bytes], to: Path, mode: int) -> None:
    """Write a file of the workspace."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as file:
        shutil.copyfileobj(content, file)
    to.chmod(mode & 0o777)


def matches(path: str, pattern: str) -> bool:
    """Return whether a file of the workspace matches a pattern.

    As in gsutil, `*` matches within a folder and `**` across folders. A pattern that ends in a
    slash matches everything in that folder.
    """
    pattern = _relative(pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.rstrip("/"))
    shape = "".join(known.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(f"{shape}(?:/.*)?" if pattern.endswith("/") else shape, path) is not None


def _relative(pattern: str) -> str:
    return pattern.removeprefix(f"{WORKSPACE}/").removeprefix("./")
