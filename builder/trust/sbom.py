"""The bill of materials of an image, as CycloneDX 1.6, written from the locks.

Each package has its name, version, hash, purl, layer, and licence and supplier where they are known
(builder/trust/licences.yaml). Libraries whose device code was taken out are marked as modified.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from builder.core import yamlfile
from builder.devicecode.inventory import Library
from builder.devicecode.pruning.fatbin import ELF, Target
from builder.devicecode.pruning.prune import OWNERS
from builder.devicecode.pruning.rule import ComputeCapability, compute_capability, runs
from builder.lock.debs import Deb
from builder.lock.model import Lock
from builder.lock.pins import Pin
from builder.prove import wheels
from builder.registry import Reference
from builder.trust.layers import Layers

PREFIX: Final = "training-image-factory"
_PRUNE, _RUNS_ON = f"{PREFIX}.prune", f"{PREFIX}.runs-on"
_ARCHITECTURE: Final = re.compile(r"_([a-z0-9]+)\.deb$")
_NO_SPDX: Final = frozenset({"BSD", "NVIDIA Proprietary Software"})


@dataclass(frozen=True)
class BillSubject:
    """The image that a bill of materials is of.

    where: its repository. digest: of its manifest. labels: of its configuration. program: the name
    of the program in its last layer. libraries: the paths of those with device code, as the receipt
    saw them in the image. made_at: ISO 8601. made_by: the factory's version.
    """

    where: Reference
    digest: str
    labels: Mapping[str, str]
    layers: Layers
    program: str
    libraries: tuple[str, ...]
    made_at: str
    made_by: str

    @property
    def purl(self) -> str:
        """Its package URL."""
        return image_purl(self.where, self.digest)


def bill(subject: BillSubject, lock: Lock, read: wheels.Read) -> dict[str, Any]:
    """The CycloneDX document. read: what is known of the libraries in the locked wheels."""
    components = [*_debian(subject, lock), *_python(subject, lock, read)]
    program = {
        "type": "application",
        "bom-ref": f"program:{subject.program}",
        "name": subject.program,
        "properties": _properties(layer=subject.layers.top),
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, subject.purl)}",
        "version": 1,
        "metadata": {
            "timestamp": subject.made_at,
            "tools": {
                "components": [{"type": "application", "name": PREFIX, "version": subject.made_by}]
            },
            "component": {
                "type": "container",
                "bom-ref": subject.purl,
                "name": subject.where.name,
                "version": subject.digest,
                "purl": subject.purl,
            },
        },
        "components": [*components, program],
        "compositions": [
            # a published base holds more than the locks say
            {
                "aggregate": "complete" if lock.root else "incomplete",
                "assemblies": [subject.purl],
            }
        ],
    }


def debian_packages(lock: Lock) -> Iterator[tuple[str, Deb]]:
    """Every locked Debian package, with the name of its lock file."""
    if lock.root:
        yield from ((f"os-{lock.root.suite}.lock", deb) for deb in lock.root.packages)
    for name, packages in lock.apt.items():
        yield from ((name, deb) for deb in packages)


def debian_source(deb: Deb) -> str:
    """The source package of a Debian package: the folder of the archive that it lies in."""
    return Path(deb.path).parent.name


def pypi_purl(pin: Pin) -> str:
    """The package URL of a Python package (purl-spec, type pypi)."""
    return f"pkg:pypi/{normal(pin.name)}@{quote(pin.version, safe='')}"


def image_purl(where: Reference, digest: str) -> str:
    """The package URL of an image in a repository (purl-spec, type oci)."""
    name = where.repository.rpartition("/")[2]
    place = quote(where.name, safe="")
    return f"pkg:oci/{name}@{quote(digest, safe='')}?repository_url={place}"


def _debian(subject: BillSubject, lock: Lock) -> Iterator[dict[str, Any]]:
    suite = lock.root.suite if lock.root else ""
    for file, deb in debian_packages(lock):
        architecture = _ARCHITECTURE.search(deb.path)
        qualifiers = {
            "arch": architecture[1] if architecture else "",
            "distro": suite,
            "upstream": debian_source(deb),
        }
        asked = "&".join(f"{name}={quote(value)}" for name, value in qualifiers.items() if value)
        purl = f"pkg:deb/debian/{quote(deb.name, safe='')}@{quote(deb.version, safe='~')}?{asked}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "supplier": {"name": "Debian"},
            "name": deb.name,
            "version": deb.version,
            "hashes": [{"alg": "SHA-256", "content": deb.sha256}],
            "purl": purl,
            "properties": _properties(
                lock=file, layer=subject.layers.holds(file, f"{deb.name} {deb.version}")
            ),
        }


def _python(subject: BillSubject, lock: Lock, read: wheels.Read) -> Iterator[dict[str, Any]]:
    for file, pins in lock.wheels.items():
        for pin in pins:
            known = read.get(pin.sha256)
            changed = [
                library.path
                for library in (known.libraries if known else ())
                if _changed(library, subject)
            ]
            yield {
                "type": "library",
                "bom-ref": pypi_purl(pin),
                **_supplier(pin.name),
                "name": pin.name,
                "version": pin.version,
                "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
                **_licence(pin.name),
                "purl": pypi_purl(pin),
                **_modified(pin, changed, subject.labels),
                "properties": _properties(
                    lock=file, layer=subject.layers.holds(file, f"{pin.name} {pin.version}")
                ),
            }


def _modified(pin: Pin, paths: list[str], labels: Mapping[str, str]) -> dict[str, Any]:
    """What CycloneDX says of a package whose libraries are no longer the wheel's."""
    if not paths:
        return {}
    return {
        "modified": True,
        "pedigree": {
            "ancestors": [
                {
                    "type": "library",
                    "name": pin.name,
                    "version": pin.version,
                    "purl": pypi_purl(pin),
                }
            ],
            "notes": f"device code that compute capability {labels[_RUNS_ON]} cannot run is zero"
            " in the files below; their hashes in RECORD no longer match",
        },
        "components": [
            {
                "type": "file",
                "bom-ref": f"{pypi_purl(pin)}#{path}",
                "name": path,
                "modified": True,
            }
            for path in paths
        ],
    }


def _changed(library: Library, subject: BillSubject) -> bool:
    """Whether a library is in the image, and pruning took device code out of it."""
    only, keep = subject.labels.get(_PRUNE), subject.labels.get(_RUNS_ON)
    if not any(path.endswith(library.path) for path in subject.libraries):
        return False
    if not only or not keep or library.path.split("/")[0] not in OWNERS.get(only, ()):
        return False
    device = compute_capability(keep)
    return any(
        not _stays(target, group.targets, device)
        for group in library.groups
        for target in group.targets
    )


def _stays(target: Target, beside: tuple[Target, ...], device: ComputeCapability) -> bool:
    """Whether code for a target is kept, as devicecode/pruning/prune.py decides it."""
    if target.kind == ELF:
        return (
            target.architecture // 10 == device.major and target.architecture <= device.architecture
        )
    compiled = any(one.kind == ELF and runs(one, device) for one in beside)
    return runs(target, device) and not compiled


def _supplier(name: str) -> dict[str, Any]:
    """Who makes a package, where its name tells."""
    for prefix, supplier in (("nvidia-", "NVIDIA"), ("tensorflow", "Google"), ("libtpu", "Google")):
        if name.startswith(prefix):
            return {"supplier": {"name": supplier}}
    return {}


def licence(name: str) -> str:
    """The licence of a Python package as SPDX writes it; "" where it is not known here."""
    return _licences().get(normal(name), "")


def _licence(name: str) -> dict[str, Any]:
    found = licence(name)
    if not found:
        return {}
    if found in _NO_SPDX:
        return {"licenses": [{"license": {"name": found}}]}
    if " " in found:
        return {"licenses": [{"expression": found}]}
    return {"licenses": [{"license": {"id": found}}]}


@cache
def _licences() -> Mapping[str, str]:
    """Python package -> its licence."""
    path = Path(__file__).with_name("licences.yaml")
    found = yamlfile.parse(path.read_text(encoding="utf-8"), path.name).value
    assert isinstance(found, dict)
    return {name: str(licence) for name, licence in found.items()}


def _properties(**values: str | None) -> list[dict[str, str]]:
    return [{"name": f"{PREFIX}:{name}", "value": value} for name, value in values.items() if value]


def normal(name: str) -> str:
    """The name of a Python package as PyPI compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
