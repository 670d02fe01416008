"""The factory's own wheel in a project of somebody else, for the steps of its cloudbuild.yaml."""

from __future__ import annotations

import base64
import email
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from builder import __version__
from builder.cloudbuild.rendered import BUILDER_REQUIREMENTS, BUILDER_SUITE, CLOUDBUILD, WHEEL
from builder.config import network, uv
from builder.config.pins import dump
from builder.config.stack import GLIBC
from builder.config.uv import Platform
from builder.core import files, outgoing, project
from builder.core.errors import InputError, OutsideError
from builder.init.findings import Findings

PYTHON: Final = Platform("3.13", GLIBC[BUILDER_SUITE])
"""The Python of the builder image, which is BUILDER_SUITE's, and its glibc."""
_INSTALLERS: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""What an installer writes beside a wheel's own files."""


def bring(root: Path, findings: Findings, force: bool = False) -> list[Path]:
    """Copy the factory's wheel into a project and lock what it needs; return the files written.

    The steps of the project's cloudbuild.yaml then run the factory from this wheel. What is there
    stays, unless `force` is given; another release is noted. Raises InputError for a file of
    somebody else, OutsideError where the index cannot be reached.
    """
    locked = root / BUILDER_REQUIREMENTS
    outgoing.inside(root, locked)
    there = sorted(locked.parent.glob(WHEEL))
    kept = there[-1] if there and not force else None
    if kept and locked.is_file():
        if f"-{__version__}-" not in kept.name:
            why = f"this is {__version__}: --force brings it"
            findings.leave(kept.relative_to(root).as_posix(), "another release of the factory", why)
        return []
    if locked.is_file() and not force:
        what = f"--cloud-build: {BUILDER_REQUIREMENTS} is there, and not of the factory"
        raise InputError(what, "move it away, or give --force")
    name, content = (kept.name, kept.read_bytes()) if kept else own_wheel()
    header = f"What the steps of {CLOUDBUILD} run {name} with, by `builder init`."
    try:
        pins = uv.resolve(_needed(content), PYTHON, network.discover().host_environment())
    except uv.NoSolution as error:
        fix = "name an index that has what it needs in UV_DEFAULT_INDEX"
        raise OutsideError(f"--cloud-build: {name}: {error}", fix) from None
    text = dump(pins.values(), header)
    new = {locked.with_name(name): content, locked: text.encode()}
    written = [path for path in new if not path.is_file() or path.read_bytes() != new[path]]
    for path in written:
        files.write(path, new[path])
    for old in there if force else ():
        if old.name != name:
            old.unlink()
    return written


def own_wheel() -> tuple[str, bytes]:
    """Return name and content of the factory's wheel. Raises InputError in its source tree."""
    if (project.INSTALLED / "setup.py").is_file():
        what = f"--cloud-build: the factory runs from its source tree, {project.INSTALLED}"
        raise InputError(what, "run `uv build --wheel` there, install the wheel, and try again")
    return packed(metadata.distribution("training-image-factory"))


def packed(distribution: metadata.Distribution) -> tuple[str, bytes]:
    """Return the file name and the content of the wheel that a distribution was installed from.

    The same installation gives the same bytes. Raises InputError where a file was changed since.
    """
    buffer, record, info = io.BytesIO(), "", ""
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(distribution.files or ()):
            if file.hash is None or ".." in file.parts or file.name in _INSTALLERS:
                continue
            content = Path(str(file.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            if digest.rstrip("=") != file.hash.value:
                raise InputError(f"{file} was changed since it was installed", "install it again")
            info = file.parts[0] if file.name == "WHEEL" else info
            record += f"{file},sha256={file.hash.value},{len(content)}\n"
            archive.writestr(zipfile.ZipInfo(str(file)), content, zipfile.ZIP_DEFLATED)
        name = f"{info}/RECORD"
        archive.writestr(zipfile.ZipInfo(name), f"{record}{name},,\n", zipfile.ZIP_DEFLATED)
    return f"{info.removesuffix('.dist-info')}-py3-none-any.whl", buffer.getvalue()


def _needed(wheel: bytes) -> list[str]:
    """Return what the steps of a build need of a wheel: what it always does, and the extra that
    signs for an identity. Raises InputError for another file."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
            message = email.message_from_bytes(archive.read(name))
    except (zipfile.BadZipFile, ValueError) as error:
        raise InputError(f"--cloud-build: no wheel: {error}", "give --force") from None
    needs = (Requirement(each) for each in message.get_all("Requires-Dist", []))
    return [
        f"{each.name}{each.specifier}"
        for each in needs
        if not each.marker or each.marker.evaluate({"extra": "keyless"})
    ]
