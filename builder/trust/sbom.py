"""The bill of materials of an image, as CycloneDX 1.6, written from the locks.

Each package has its name, version, hash and package URL, and licence and supplier where they are
known (builder/trust/licences.yaml). A package whose device code was pruned says so in its pedigree.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from builder import frameworks
from builder.config import device_code
from builder.config.lockfile import Lock
from builder.core import yamlfile
from builder.devicecode.library import Library
from builder.devicecode.pruning.fatbin import COMPILED, LINK_INPUT
from builder.registry import Reference
from builder.trust import packages
from builder.trust.packages import LockedPackage

PREFIX: Final = "training-image-factory"
_PRUNE, _RUNS_ON = f"{PREFIX}.prune", f"{PREFIX}.runs-on"
_SUPPLIERS: Final = {
    "pkg:deb/debian/": "Debian",
    "pkg:pypi/nvidia-": "NVIDIA",
    "pkg:pypi/tensorflow": "Google",
    "pkg:pypi/libtpu": "Google",
}
"""Who makes a package, where its package URL tells."""


@dataclass(frozen=True)
class DescribedImage:
    """The image that a bill of materials describes.

    name: its repository. digest: of its manifest. labels: of its configuration. program: the name
    of the program in it. libraries: the paths of those with device code, as the receipt saw them.
    made_at: ISO 8601. made_by: the factory's version.
    """

    name: Reference
    digest: str
    labels: Mapping[str, str]
    program: str
    libraries: tuple[str, ...]
    made_at: str
    made_by: str


def image_purl(name: Reference, digest: str) -> PackageURL:
    """Return the package URL of an image in a repository (purl-spec, type oci)."""
    short = name.repository.rpartition("/")[2]
    return PackageURL("oci", None, short, digest, {"repository_url": name.name})


def bill(image: DescribedImage, lock: Lock, read: device_code.Read) -> dict[str, Any]:
    """Return the CycloneDX document. read: what is known of the libraries in the locked wheels."""
    purl = image_purl(image.name, image.digest)
    described = Component(
        type=ComponentType.CONTAINER,
        name=image.name.name,
        version=image.digest,
        bom_ref=str(purl),
        purl=purl,
    )
    components = [_component(package, image, read) for package in packages.locked(lock)]
    components.append(
        Component(
            type=ComponentType.APPLICATION,
            name=image.program,
            bom_ref=f"program:{image.program}",
        )
    )
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(purl)),
        components=components,
        metadata=BomMetaData(
            timestamp=datetime.fromisoformat(image.made_at),
            tools=ToolRepository(
                components=[
                    Component(type=ComponentType.APPLICATION, name=PREFIX, version=image.made_by)
                ]
            ),
            component=described,
        ),
    )
    bom.register_dependency(described, components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    # the library has no compositions; a published base holds more than the locks say
    aggregate = "complete" if lock.root else "incomplete"
    document["compositions"] = [{"aggregate": aggregate, "assemblies": [str(purl)]}]
    return document


def licence(name: str) -> str:
    """Return the licence of a Python package as SPDX writes it; "" where it is not known here."""
    return _licences().get(canonicalize_name(name), "")


def _component(package: LockedPackage, image: DescribedImage, read: device_code.Read) -> Component:
    purl = str(package.purl)
    wheel = read.get(package.sha256)
    pruned = _pruned(wheel.libraries, image) if wheel else []
    supplier = next((name for start, name in _SUPPLIERS.items() if purl.startswith(start)), None)
    known = licence(package.name) if package.purl.type == "pypi" else ""
    return Component(
        name=package.name,
        version=package.version,
        bom_ref=purl,
        purl=package.purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
        supplier=OrganizationalEntity(name=supplier) if supplier else None,
        licenses=[LicenseFactory().make_from_string(known)] if known else (),
        properties=[Property(name=f"{PREFIX}:lock", value=package.lock_file)],
        pedigree=_pedigree(package, image.labels[_RUNS_ON]) if pruned else None,
        components=[
            Component(type=ComponentType.FILE, name=path, bom_ref=f"{purl}#{path}")
            for path in pruned
        ],
    )


def _pedigree(package: LockedPackage, runs_on: str) -> Pedigree:
    """Return where a package comes from whose libraries may no longer be the wheel's."""
    wheel = Component(name=package.name, version=package.version, purl=package.purl)
    return Pedigree(
        ancestors=[wheel],
        notes="pruned: device code in the files below that compute capability"
        f" {runs_on} cannot run is zero; where there was any, the hash in RECORD no longer matches",
    )


def _pruned(libraries: Iterable[Library], image: DescribedImage) -> list[str]:
    """Return the libraries of a wheel that are in the image, and that pruning goes through."""
    mode = image.labels.get(_PRUNE, "") if _RUNS_ON in image.labels else ""
    owners = frameworks.of_image(image.labels).pruned(mode) if mode else ()
    return [
        library.path
        for library in libraries
        if library.path.split("/")[0] in owners
        and any(group.section in (COMPILED, LINK_INPUT) for group in library.groups)
        and any(path.endswith(library.path) for path in image.libraries)
    ]


@cache
def _licences() -> Mapping[str, str]:
    """Read the licences of Python packages, by name."""
    path = Path(__file__).with_name("licences.yaml")
    content = yamlfile.parse(path.read_text(encoding="utf-8"), path.name).value
    assert isinstance(content, dict)
    return {name: str(text) for name, text in content.items()}
