"""The download estimate: what it takes to assemble bases, in bytes, before anything starts.

What is downloaded is known: a lock has the size of each package, a registry that of each layer. How
large a packed layer is, is known of one that was made before; of the others it is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from builder.devicecode.pruning.prune import TENSORFLOW
from builder.image.layer import Layer

if TYPE_CHECKING:
    from builder.image.base import Availability
    from builder.image.layer import LayerPlan
    from builder.image.plan import BasePlan

ROOTFS: Final = 0.91
WHEELS: Final = 0.8
PRUNED_TENSORFLOW: Final = 0.46
PRUNED: Final = 0.3
"""Packed bytes for each byte of the packages: of the rootfs, of wheels, of TensorFlow's wheel that
is pruned for one GPU, of other pruned wheels. Measured with `builder show base v100` (zstd:3); the
whole base is then 0.5 % off, that of cpu, which prunes nothing, 8 %."""

Lacks = Callable[[Sequence[Layer | None]], Sequence[bool]]
"""Tells which layers of an image, the lowest first, have to be sent; a layer is None until it is
made."""


@dataclass(frozen=True)
class Estimate:
    """What some bases take, in bytes. A layer or a package that several of them share counts once.

    layers: how many there are. missing: how many have to be made. download: packages, and layers
    that a registry has; unknown: how many packages are not in it, because no index told their size.
    make: the packed layers that have to be made. send: what the engine lacks.
    """

    layers: int
    missing: int
    download: int
    unknown: int
    make: int
    send: int

    @property
    def nothing(self) -> bool:
        """Whether everything is where it has to be."""
        return not (self.missing or self.download or self.send)

    def __str__(self) -> str:
        if self.nothing:
            return "everything is there"
        about = "about " if self.missing else ""
        more = f" and {self.unknown} packages of unknown size" if self.unknown else ""
        parts = (
            (self.download, f"{_mb(self.download)}{more} to download"),
            (self.make, f"about {_mb(self.make)} to make"),
            (self.send, f"{about}{_mb(self.send)} to send to the engine"),
        )
        amounts = ", ".join(text for size, text in parts if size)
        head = f"{self.missing} of {self.layers} layers to make: " if self.missing else ""
        return f"{head}{amounts}"


def estimate(
    plans: Sequence[BasePlan],
    available: Availability,
    lacks: Lacks = lambda layers: [False] * len(layers),
) -> Estimate:
    """Return what these bases take. It is a function of its arguments; nothing is looked up.

    available: where their layers are. lacks: which of them the engine gets; by default none.
    """
    sizes: dict[str, int] = {}
    sent: set[str] = set()
    for plan in plans:
        for layer, share in _shares(plan):
            known = available.layer(layer.key)
            sizes[layer.key] = known.blob.size if known else round((layer.download or 0) * share)
        lacking = lacks([available.layer(layer.key) for layer in plan.layers])
        sent |= {layer.key for layer, is_sent in zip(plan.layers, lacking, strict=True) if is_sent}
    packages = _packages(plans, available)
    downloads = [size or 0 for size in packages.values()]
    downloads += [layer.blob.size for layer in available.offered.values()]
    return Estimate(
        layers=len(sizes),
        missing=len(available.missing),
        download=sum(downloads),
        unknown=sum(size is None for size in packages.values()),
        make=sum(sizes[key] for key in available.missing),
        send=sum(sizes[key] for key in sent),
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _shares(plan: BasePlan) -> Iterator[tuple[LayerPlan, float]]:
    """Yield each layer, and its packed bytes for each byte of its packages."""
    root, *_, top = plan.layers
    yield root, ROOTFS
    for layer in plan.wheels:
        pruned = PRUNED_TENSORFLOW if layer.only == TENSORFLOW else PRUNED
        yield layer.plan, pruned if layer.keep else WHEELS
    yield top, 0.0  # some kilobytes


def _packages(plans: Sequence[BasePlan], available: Availability) -> Mapping[str, int | None]:
    """Return the size of each package that the missing layers are made from, by its checksum."""
    sizes: dict[str, int | None] = {}
    for plan in plans:
        if plan.layers[0].key in available.missing:
            sizes |= {deb.sha256: deb.bytes for deb in plan.rootfs.packages}
        for layer in plan.wheels:
            if layer.plan.key in available.missing:
                sizes |= {deb.sha256: deb.bytes for deb in plan.compiler}
                sizes |= {pin.sha256: pin.bytes for pin in layer.pins}
    return sizes
