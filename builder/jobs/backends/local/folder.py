"""The folder of a local job: what lies where, who may write there, and whose the files are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import containers

if TYPE_CHECKING:
    import docker

FOLDER = Path("build") / "jobs"
"""The folder of the local jobs' folders, in the project."""
LOCAL = "local"
"""The part of a job's folder that the runner writes."""
STATE = "state.json"
STUDY = "study.json"
NOTES = "job.log"
"""The lines of the runner itself: starts, restarts, the end."""

LABEL = "training-image-factory.job"
FOLDER_LABEL = "training-image-factory.job.folder"


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of a local job, by its name, its file, or the folder itself."""
    if Path(name).is_dir() and (Path(name) / LOCAL).is_dir():
        return Path(name)
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    return root / FOLDER / stem


def ran_at(folder: Path) -> float | None:
    """Return when a job wrote into its folder last, in seconds since 1970; None for no job."""
    states = [folder / LOCAL / STATE, folder / STUDY]
    return max((path.stat().st_mtime for path in states if path.is_file()), default=None)


def sweep(client: docker.DockerClient) -> None:
    """Remove what jobs of this machine left whose builder was killed: containers and networks.
    Their folders are given back."""
    left = containers.sweep(client, LABEL)
    for folder in {labels.get(FOLDER_LABEL, "") for labels in left} - {""}:
        give_back(Path(folder))


def user() -> str | None:
    """Return the user of a container, None for the image's own.

    A job that root starts runs as the image says, and the files are given back at the end. A job of
    anyone else runs as that person, so that all files belong to that person whatever ends the run.
    """
    return None if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"


def open_up(folder: Path, *, whole: bool = True) -> None:
    """Make a folder that the containers' user may write into; `whole`: also into the files of an
    earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return
    folder.chmod(0o777)
    for path in folder.rglob("*") if whole else ():
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))


def give_back(folder: Path) -> None:
    """Give all files of a folder to the person who started the run."""
    if os.geteuid() != 0 or not folder.is_dir():
        return
    uid = int(os.environ.get("SUDO_UID", "0"))
    gid = int(os.environ.get("SUDO_GID", "0"))
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            os.chown(path, uid, gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o022)
