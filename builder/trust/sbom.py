"""The bill of materials of an image, as CycloneDX 1.6, written from the locks.

Each package has its name, version, hash and package URL, and licence and supplier where they are
known (builder/trust/licences.yaml).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from builder.config.debian_packages import DebianPackage
from builder.config.lockfile import Lock
from builder.facts import read_table
from builder.registry import Reference

PREFIX: Final = "training-image-factory"
_SUPPLIERS: Final = {
    "pkg:deb/debian/": "Debian",
    "pkg:pypi/nvidia-": "NVIDIA",
    "pkg:pypi/tensorflow": "Google",
    "pkg:pypi/libtpu": "Google",
}
"""Who makes a package, where its package URL tells."""
_ARCHITECTURE: Final = re.compile(r"_([a-z0-9]+)\.deb$")


@dataclass(frozen=True)
class DescribedImage:
    name: Reference
    """Its repository."""
    digest: str
    """Of its manifest."""
    program: str
    """The name of the program in it."""
    pruned: str
    """Of which GPUs it kept device code, by its own label; "" where none was taken away."""
    made_at: str
    """ISO 8601."""
    made_by: str
    """The factory's version."""


def bill(image: DescribedImage, lock: Lock) -> dict[str, Any]:
    """Return the CycloneDX document of an image that was made from this lock."""
    described = container(image.name, image.digest)
    purl = str(described.purl)
    if image.pruned:
        described.properties.add(Property(name=f"{PREFIX}:pruned-for", value=image.pruned))
    reference = f"program:{image.program}"
    program = Component(type=ComponentType.APPLICATION, name=image.program, bom_ref=reference)
    components = [*locked(lock), program]
    factory = Component(type=ComponentType.APPLICATION, name=PREFIX, version=image.made_by)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, purl),
        components=components,
        metadata=BomMetaData(
            timestamp=datetime.fromisoformat(image.made_at),
            tools=ToolRepository(components=[factory]),
            component=described,
        ),
    )
    bom.register_dependency(described, components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    # the library has no compositions; a published base holds more than the locks say
    aggregate = "complete" if lock.rootfs else "incomplete"
    document["compositions"] = [{"aggregate": aggregate, "assemblies": [purl]}]
    return document


def container(image: Reference, digest: str | None) -> Component:
    """Return an image as a component, with its package URL (purl-spec, type oci)."""
    short = image.repository.rpartition("/")[2]
    purl = PackageURL("oci", None, short, digest, {"repository_url": image.name})
    return Component(
        type=ComponentType.CONTAINER, name=image.name, version=digest, bom_ref=str(purl), purl=purl
    )


def licence(name: str) -> str:
    """Return the licence of a Python package as SPDX writes it; "" where it is not known here."""
    return _licences().get(canonicalize_name(name), "")


def locked(lock: Lock) -> Iterator[Component]:
    """Yield every package of a lock, each with its package URL (purl-spec, types pypi and deb)."""
    suite = lock.rootfs.suite if lock.rootfs else ""
    debian = {f"os-{suite}.lock": lock.rootfs.packages} if lock.rootfs else {}
    for file, debs in {**debian, **lock.apt}.items():
        for deb in debs:
            yield _component(file, _purl(deb, suite), deb.sha256)
    for file, pins in lock.wheels.items():
        for pin in pins:
            yield _component(file, PackageURL("pypi", None, pin.name, pin.version), pin.sha256)


def _purl(deb: DebianPackage, suite: str) -> PackageURL:
    architecture = _ARCHITECTURE.search(deb.path)
    qualifiers = {
        "arch": architecture[1] if architecture else "",
        "distro": suite,
        "upstream": Path(deb.path).parent.name,  # the archive has a folder for each source package
    }
    return PackageURL("deb", "debian", deb.name, deb.version, qualifiers)


def _component(lock_file: str, purl: PackageURL, sha256: str) -> Component:
    text = str(purl)
    supplier = next((name for start, name in _SUPPLIERS.items() if text.startswith(start)), None)
    known = licence(purl.name) if purl.type == "pypi" else ""
    return Component(
        name=purl.name,
        version=purl.version,
        bom_ref=text,
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        supplier=OrganizationalEntity(name=supplier) if supplier else None,
        licenses=[LicenseFactory().make_from_string(known)] if known else (),
        properties=[Property(name=f"{PREFIX}:lock", value=lock_file)],
    )


@cache
def _licences() -> Mapping[str, str]:
    return read_table(Path(__file__).with_name("licences.yaml"))
