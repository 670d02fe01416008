"""For tests: key pairs, and images in a registry with their attestations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest import mock

from builder.core.settings import Settings, TrustSettings
from builder.pipeline import signing
from builder.pipeline.push import LocalImage
from builder.pipeline.verify import attach
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry
from builder.trust import keys
from builder.trust.attestations import Signer
from builder.trust.keys import SigningKey
from tests.pipeline.pushing import proof
from tests.registry.making import put_image

WORKFLOW = "https://github.com/team/training/.github/workflows/image.yml@refs/heads/main"
"""An identity of GitHub Actions."""
ACCOUNT = "builder@my-project.iam.gserviceaccount.com"
"""An identity of Google Cloud."""


@dataclass(frozen=True)
class Pair:
    """A key pair with an empty password. path: of the private key."""

    path: Path

    @property
    def public(self) -> Path:
        """The path of the public key."""
        return self.path.with_suffix(".pub")

    @cached_property
    def signer(self) -> SigningKey:
        """The private key, read."""
        return keys.read_private(str(self.path))


def pair(folder: Path, name: str) -> Pair:
    """Make a key pair in this folder, quickly: its password costs little to try."""
    with mock.patch.dict(keys._SCRYPT, N=2):
        keys.create(folder / f"{name}.key", "")
    return Pair(folder / f"{name}.key")


def receipt(image: Manifest, **changes: object) -> Receipt:
    """Return a receipt that holds for this image."""
    return proof(LocalImage("there", image.digest, image.config.digest), **changes)


@dataclass(frozen=True)
class Repository:
    """A repository of its own for one test, in the registry that all tests share."""

    client: Registry
    reference: Reference

    @property
    def path(self) -> str:
        """The repository's name in its registry."""
        return self.reference.repository

    def settings(self, *prove: Pair, host: str = "", key: Pair | None = None) -> Settings:
        """Return settings of a project with this repository.

        prove: those whose receipts count; without any, every receipt does. host: a proxy before the
        registry. key: signs a push.
        """
        public = {"prove": tuple(str(pair.public) for pair in prove)} if prove else {}
        trust = TrustSettings(key=str(key.path) if key else None, **public)
        return Settings(registry=f"{host or self.client.host}/{self.path}", trust=trust)

    def image(self, text: str = "hello", tag: str = "v100", **labels: str) -> Manifest:
        """Put the smallest image, without referrers."""
        return put_image(self.client, self.path, text, tag, labels)

    def proven(self, text: str = "hello", tag: str = "v100", **changes: object) -> Manifest:
        """Put an image with its receipt, unsigned."""
        made = self.image(text, tag)
        self.attach(made, **changes)
        return made

    def attach(self, made: Manifest, **changes: object) -> None:
        """Attach a receipt, unsigned."""
        attach(self.client, self.reference, made, receipt(made, **changes))

    def signed(
        self, key: Pair, text: str = "hello", tag: str = "v100", **changes: object
    ) -> Manifest:
        """Put an image with its receipt, signed."""
        made = self.proven(text, tag, **changes)
        self.sign(made, key.signer, **changes)
        return made

    def sign(self, made: Manifest, signer: Signer, **changes: object) -> tuple[str, ...]:
        """Sign an image and its receipt, as a push does that knows no more."""
        proof = receipt(made, **changes)
        statements = signing.statements(self.client, self.reference, made, proof, None)
        return signing.sign(self.client, self.path, statements, signer, proof.made_at)

    def name(self, made: Manifest) -> str:
        """Return the image as other programs name it."""
        return str(self.reference.at(made.digest))

    def head(self, tag: str) -> str | None:
        """Return the digest that a tag leads to."""
        return self.client.head(self.path, tag)
