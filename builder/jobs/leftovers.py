"""What a job's containers are known by, and the removal of those whose builder is no more."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import docker

LABEL = "training-image-factory.job"
OWNER = "training-image-factory.job.owner"
FOLDER = "training-image-factory.job.folder"


def owner(pid: int) -> str:
    """This machine and a process of it, told from a later one of the same number by its start."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        start = "0"
    return f"{socket.gethostname()}:{pid}:{start}"


def sweep(client: docker.DockerClient) -> int:
    """Remove containers and networks of jobs of this machine whose builder was killed, and give
    their folders back. Returns how many things were removed."""
    removed = 0
    folders: set[str] = set()
    for thing in _things(client, {"label": LABEL}):
        labels = _labels(thing)
        host, _, rest = labels.get(OWNER, "").partition(":")
        pid = rest.partition(":")[0]
        mine = host == socket.gethostname() and pid.isdigit()
        if mine and labels[OWNER] != owner(int(pid)):
            folders.add(labels.get(FOLDER, ""))
            removed += _remove(thing)
    for folder in folders - {""}:
        give_back(Path(folder))
    return removed


def remove(client: docker.DockerClient, identity: str) -> None:
    """Remove every container and network of one job; what cannot be is tried once more."""
    for _ in range(3):
        things = _things(client, {"label": f"{LABEL}={identity}"})
        if not things:
            return
        for thing in things:
            _remove(thing)


def _things(client: docker.DockerClient, filters: dict[str, Any]) -> list[Any]:
    """Containers first: a network goes only when it is empty."""
    return [
        *client.containers.list(all=True, filters=filters, ignore_removed=True),
        *client.networks.list(filters=filters),
    ]


def _labels(thing: Any) -> dict[str, str]:
    return getattr(thing, "labels", None) or thing.attrs.get("Labels") or {}


def _remove(thing: Any) -> int:
    with contextlib.suppress(Exception):  # another run may be removing it, too
        if hasattr(thing, "kill"):
            thing.remove(force=True, v=True)
        else:
            thing.remove()
        return 1
    return 0


# --- whose the files are --------------------------------------------------------------------------


def user() -> str | None:
    """Whom a container runs as: None for the image's own user.

    Root's own jobs run as the image says, and the files are given back at the end. Anybody else's
    run as that person, so that no file of another's can ever be left, whatever ends the run.
    """
    return None if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"


def open_up(folder: Path) -> None:
    """Let the containers' user write into a folder, and into what an earlier run left there."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return
    folder.chmod(0o777)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))


def open_folder(folder: Path) -> None:
    """The same for a folder alone, without what is in it."""
    if os.geteuid() == 0:
        folder.chmod(0o777)


def give_back(folder: Path) -> None:
    """Make the person who started the run the owner of all that containers wrote."""
    if os.geteuid() != 0 or not folder.is_dir():
        return
    uid = int(os.environ.get("SUDO_UID", "0"))
    gid = int(os.environ.get("SUDO_GID", "0"))
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            os.chown(path, uid, gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o022)
