"""TensorBoard over the folders of jobs on this machine and in Cloud Storage, in one view.

Each job has a name in the view, so that a run is called <job>/train. TensorBoard itself reads
gs://.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder.core.errors import InputError, OutsideError
from builder.jobs import description
from builder.jobs.backends.local import backend as local
from builder.jobs.submission import FOLDER


def sources(root: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Return the folder or the gs:// address of each of these jobs, by its name in the view.

    names: local jobs, folders, gs:// addresses; a job that did not run here is looked for in its
    bucket. No name means every local job. Raises InputError.
    """
    ran = sorted(path.parent for path in (root / FOLDER).glob(f"*/{local.LOCAL}"))
    if not names and not ran:
        raise InputError(
            "no job has run on this machine yet",
            "builder job local JOB, or name a folder or a gs:// address",
        )
    addresses = [_address(root, name, ran) for name in names] or [str(path) for path in ran]
    by_name: dict[str, str] = {}
    for address in addresses:
        name = address.rpartition("/")[2]
        while name in by_name:
            name += "+"
        by_name[name] = address
    return by_name


def _address(root: Path, name: str, ran: Sequence[Path]) -> str:
    if name.startswith("gs://"):
        return name.rstrip("/")
    if "/" in name and Path(name).is_dir():
        return str(Path(name).resolve())
    folder = local.folder_of(root, name)
    if folder.is_dir():
        return str(folder)
    job_dir = description.load(root, name).job_dir if name in description.names(root) else None
    if job_dir and job_dir.startswith("gs://") and "{job}" not in job_dir:
        return job_dir.rstrip("/")
    known = ", ".join(path.name for path in ran)
    raise InputError(
        f"{name}: this job has not run here, and its folder is not known",
        f"known: {known}" if known else "name its folder or its gs:// address",
    )


def _logs(folder: Path) -> Path:
    """Return a job's logs/ where it holds all event files, else the whole folder."""
    logs = folder / "logs"
    others = (path for path in folder.rglob("*tfevents*") if not path.is_relative_to(logs))
    return logs if logs.is_dir() and next(others, None) is None else folder


def spec(folders: Mapping[str, str]) -> str:
    """Return the jobs as TensorBoard's --logdir_spec takes them: cats:/path,far:gs://bucket/far."""
    places = {
        name: address if address.startswith("gs://") else str(_logs(Path(address)))
        for name, address in folders.items()
    }
    return ",".join(f"{name}:{place}" for name, place in places.items())


def serve(folders: Mapping[str, str], host: str, port: int, ready: Callable[[str], object]) -> None:
    """Let TensorBoard show the jobs until Ctrl-C or SIGTERM. ready: gets its address.

    Raises ImportError without TensorBoard, OutsideError where what reads gs:// for it is not
    installed, and where it cannot start.
    """
    remote, gcsfs = "gs://" in spec(folders), importlib.util.find_spec("gcsfs")
    if remote and not gcsfs and not importlib.util.find_spec("tensorflow"):
        uv = Path(sys.executable).with_name("uv")
        what = "TensorBoard reads gs:// with gcsfs, which is not installed"
        raise OutsideError(what, f"{uv} pip install --python {sys.executable} gcsfs")
    if gcsfs or not remote:
        # TensorBoard does not import TensorFlow, which takes seconds, where this module is there
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard import program  # type: ignore[import-untyped]

    board = program.TensorBoard()
    board.configure(logdir_spec=spec(folders), host=host, port=port, reload_interval=5)
    # its own main() has a handler of SIGTERM that may be lost: it then serves for ever
    with contextlib.suppress(KeyboardInterrupt):
        try:
            ready(board.launch())
        except program.TensorBoardServerException as error:
            what = f"TensorBoard did not start: {error.msg}"
            raise OutsideError(what, "choose another --port") from None
        threading.Event().wait()
