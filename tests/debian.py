"""For tests: programs from Debian's packages, without installing any."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from builder.core import files
from builder.core.errors import OutsideError
from builder.core.mirrors import host_suite
from builder.engine.private.packages import Packages, launcher, unpack


def tool(program: str, packages: Sequence[str] = (), suite: str | None = None) -> Path:
    """A program of Debian's, brought with its libraries into a private folder: path to run it.

    `packages` defaults to the package of the same name, `suite` to the host's own.
    """
    source = Packages(suite or host_suite())
    versions = source.closure(packages or (program,))
    key = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:16]
    folder = files.cache_home() / "tools" / f"{program}-{key}"
    run = folder / "bin" / program
    with files.locked(folder.parent / f".{program}.lock"):
        if not run.exists():
            shutil.rmtree(folder, ignore_errors=True)
            unpack(source.download(versions), folder / "root")
            found = [folder / "root" / path / program for path in ("usr/bin", "usr/sbin", "bin")]
            real = next((path for path in found if path.exists()), None)
            if real is None:
                raise OutsideError(
                    f"Debian {source.suite}: {', '.join(packages or (program,))} has no {program}",
                    "name the package that holds it",
                )
            files.write(run, launcher(folder / "root", real), 0o755)
    return run
