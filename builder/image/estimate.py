"""The download estimate: what it takes to assemble bases, in bytes, before anything starts.

What is downloaded is known: a lock has the size of each package, a registry that of each layer. How
large a packed layer is, is known of one that was made before; of the others it is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
class Amount:
    """A number of bytes.

    estimated: some of them were not counted but estimated. incomplete: there are more, of packages
    whose size no index told.
    """

    bytes: int = 0
    estimated: bool = False
    incomplete: bool = False

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.bytes + other.bytes,
            self.estimated or other.estimated,
            self.incomplete or other.incomplete,
        )

    def __str__(self) -> str:
        words = ("at least",) * self.incomplete + ("about",) * self.estimated
        return " ".join((*words, f"{self.bytes / 1e6:,.0f} MB"))


@dataclass(frozen=True)
class Estimate:
    """What some bases take. A layer or a package that several of them share counts once.

    layers: how many there are. missing: how many have to be made. download: packages, and layers
    that a registry has. make: the packed layers that have to be made. send: what `to` gets.
    """

    layers: int
    missing: int
    download: Amount
    make: Amount
    send: Amount
    to: str

    @property
    def nothing(self) -> bool:
        """Whether everything is where it has to be."""
        return not (self.missing or self.download.bytes or self.send.bytes)

    def __str__(self) -> str:
        if self.nothing:
            return f"{self.to} has everything"
        head = f"{self.missing} of {self.layers} layers to make" if self.missing else ""
        parts = (
            (self.download, "to download"),
            (self.make, "to make"),
            (self.send, f"to send to {self.to}"),
        )
        amounts = ", ".join(f"{amount} {what}" for amount, what in parts if amount.bytes)
        return ": ".join(filter(None, (head, amounts)))


def estimate(plans: Sequence[BasePlan], available: Availability, to: str, lacks: Lacks) -> Estimate:
    """Return what these bases take. It is a function of its arguments; nothing is looked up.

    available: where their layers are. to: who gets them, such as "the engine"; lacks: what it gets.
    """
    sizes: dict[str, Amount] = {}
    for plan in plans:
        for layer, share in _shares(plan):
            made = available.layer(layer.key)
            packed = round((layer.download or 0) * share)
            sizes[layer.key] = (
                Amount(made.blob.size)
                if made
                else Amount(packed, estimated=True, incomplete=layer.download is None)
            )
    send: dict[str, Amount] = {}
    for plan in plans:
        lacking = lacks([available.layer(layer.key) for layer in plan.layers])
        for layer, is_sent in zip(plan.layers, lacking, strict=True):
            if is_sent:
                send[layer.key] = sizes[layer.key]
    fetched = [Amount(layer.blob.size) for layer in available.offered.values()]
    return Estimate(
        layers=len(sizes),
        missing=len(available.missing),
        download=_sum((*_packages(plans, available), *fetched)),
        make=_sum(sizes[key] for key in available.missing),
        send=_sum(send.values()),
        to=to,
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


def _shares(plan: BasePlan) -> Iterator[tuple[LayerPlan, float]]:
    """Yield each layer, and its packed bytes for each byte of its packages."""
    root, *_, top = plan.layers
    yield root, ROOTFS
    for layer in plan.wheels:
        pruned = PRUNED_TENSORFLOW if layer.only == TENSORFLOW else PRUNED
        yield layer.plan, pruned if layer.keep else WHEELS
    yield top, 0.0  # some kilobytes


def _packages(plans: Sequence[BasePlan], available: Availability) -> Iterator[Amount]:
    """Yield the size of each package that the missing layers are made from."""
    sizes: dict[str, int | None] = {}
    for plan in plans:
        if plan.layers[0].key in available.missing:
            sizes |= {deb.sha256: deb.bytes for deb in plan.rootfs.packages}
        for layer in plan.wheels:
            if layer.plan.key in available.missing:
                sizes |= {deb.sha256: deb.bytes for deb in plan.compiler}
                sizes |= {pin.sha256: pin.bytes for pin in layer.pins}
    for size in sizes.values():
        yield Amount(size or 0, incomplete=size is None)
