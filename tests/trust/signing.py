"""For tests: key pairs, and an image in a registry with signed statements beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core.settings import Settings
from builder.core.trustsettings import TrustSettings
from builder.pipeline import signing
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry, parse
from builder.trust import keys
from builder.trust.bundle import Signer
from tests.pipeline.pushing import REPOSITORY, Image, proof
from tests.registry.making import put_image


@dataclass(frozen=True)
class Pair:
    """A key pair with an empty password. path: of the private key."""

    path: Path

    @property
    def public(self) -> Path:
        """The path of the public key."""
        return self.path.with_suffix(".pub")

    @property
    def signer(self) -> Signer:
        """The private key, read."""
        return keys.signer(str(self.path))


def pair(folder: Path, name: str) -> Pair:
    """A new key pair in this folder."""
    keys.create(folder / f"{name}.key", "")
    return Pair(folder / f"{name}.key")


def settings(
    host: str, *prove: Pair, suite: str = "", age: float | None = None, key: Pair | None = None
) -> Settings:
    """Settings with a [trust] table: `prove` are those whose receipts count."""
    trust = TrustSettings(
        key=str(key.path) if key else None,
        prove=tuple(str(one.public) for one in prove),
        suite=suite,
        age=age,
    )
    return Settings(registry=f"{host}/{REPOSITORY}", trust=trust)


def at(host: str) -> Reference:
    """The repository of the tests."""
    return parse(f"{host}/{REPOSITORY}")


def image(there: Registry, text: str = "hello", tag: str = "v100") -> Manifest:
    """The smallest image, without statements."""
    return put_image(there, REPOSITORY, text, tag)


def receipt(image: Manifest, **changes: object) -> Receipt:
    """A receipt that holds for this image."""
    return proof(Image("there", image.digest, image.config.digest), **changes)


def sign(
    there: Registry, where: Reference, made: Manifest, proof: Receipt, signer: Signer
) -> tuple[str, ...]:
    """Sign an image and its receipt, as a push does that knows no more."""
    said = signing.said(there, where, made, proof, None)
    return signing.sign(there, where, said, signer, proof.made_at)
