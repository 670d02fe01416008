"""What it takes to assemble bases, in bytes: said before anything starts.

What is downloaded is known: a lock has the size of each package, a registry that of each layer. How
large a packed layer is, is known of one that was made before; of the others it is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from builder.bases import bytecode, debs, download
from builder.bases.assembling import Looked
from builder.bases.layer import Layer
from builder.devicecode.pruning.prune import TENSORFLOW

if TYPE_CHECKING:
    from builder.bases.assembled import AssembledImage
    from builder.bases.plan import BasePlan
    from builder.bases.wheels import WheelLayer
    from builder.lock.debs import Deb
    from builder.lock.model import Lock
    from builder.lock.pins import Pin

ROOT: Final = 0.91
WHEELS: Final = 0.8
PRUNED_TENSORFLOW: Final = 0.46
PRUNED: Final = 0.3
"""Packed bytes for each byte of the packages: of the OS root, of wheels, of TensorFlow's wheel that
is pruned for one GPU, of other pruned wheels. Measured with `builder show base v100` (zstd:3); the
whole base is then 0.5 % off, that of cpu, which prunes nothing, 8 %."""


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
class Destination:
    """Where layers are sent: "the engine". lacks: says which layers of an image are sent, the
    lowest first; a layer is None until it is made."""

    name: str
    lacks: Callable[[Sequence[Layer | None]], Sequence[bool]]


@dataclass(frozen=True)
class Forecast:
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
        said = ", ".join(f"{amount} {what}" for amount, what in parts if amount.bytes)
        return ": ".join(filter(None, (head, said)))


def of(
    wanted: Sequence[tuple[BasePlan, Lock]],
    looked: Looked,
    to: Destination,
    whole: Sequence[AssembledImage] = (),
    pulled: Sequence[AssembledImage] = (),
) -> Forecast:
    """What bases take. Nothing is fetched.

    wanted: the bases to assemble, each with the lock of a target that has it. whole: bases that
    this machine has. pulled: bases that `to` itself gets from a registry.
    """
    there = {**looked.here, **looked.offered}
    sizes = {key: Amount(layer.blob.size) for key, layer in there.items()}
    made = {key: size for key, size in _expected(wanted) if key in looked.missing}
    sizes |= made
    sent: dict[str, Amount] = {}
    for plan, _ in wanted:
        layers = [looked.layer(one.key) for one in plan.layers]
        for one, lacks in zip(plan.layers, to.lacks(layers), strict=True):
            if lacks:
                sent[one.key] = sizes[one.key]
    sent |= dict(_lacked(whole, to))
    fetched = [Amount(layer.blob.size) for layer in looked.offered.values()]
    return Forecast(
        layers=len(sizes),
        missing=len(looked.missing),
        download=_sum((*_downloads(wanted, looked), *fetched, *dict(_lacked(pulled, to)).values())),
        make=_sum(made.values()),
        send=_sum(sent.values()),
        to=to.name,
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


def _lacked(images: Sequence[AssembledImage], to: Destination) -> Iterator[tuple[str, Amount]]:
    """The digest and size of each layer of these images that the destination lacks."""
    for image in images:
        for layer, lacks in zip(image.layers, to.lacks(image.layers), strict=True):
            if lacks:
                yield layer.key or layer.blob.digest, Amount(layer.blob.size)


def _expected(wanted: Sequence[tuple[BasePlan, Lock]]) -> Iterator[tuple[str, Amount]]:
    """The key of each layer, and how large it will be when it is packed."""
    for plan, _ in wanted:
        root, *_, top = plan.layers
        yield root.key, _estimate(root.download, ROOT)
        for layer in plan.wheels:
            yield layer.plan.key, _estimate(layer.plan.download, _share(layer))
        yield top.key, Amount(estimated=True)  # some kilobytes


def _share(layer: WheelLayer) -> float:
    if not layer.keep:
        return WHEELS
    return PRUNED_TENSORFLOW if layer.only == TENSORFLOW else PRUNED


def _estimate(download: int | None, share: float) -> Amount:
    return Amount(round((download or 0) * share), estimated=True, incomplete=download is None)


def _downloads(wanted: Sequence[tuple[BasePlan, Lock]], looked: Looked) -> Iterator[Amount]:
    """What is to come of each package that the missing layers are made from."""
    pins: dict[str, Pin] = {}
    packages: dict[str, Deb] = {}
    for plan, lock in wanted:
        layers = [layer for layer in plan.wheels if layer.plan.key in looked.missing]
        pins |= {pin.sha256: pin for layer in layers for pin in layer.pins}
        needed = plan.root.packages if plan.layers[0].key in looked.missing else ()
        if layers and bytecode.runs_here():
            needed = (*needed, *bytecode.packages(lock))
        packages |= {deb.sha256: deb for deb in needed}
    for pin in pins.values():
        left = download.left(pin)
        yield Amount(left or 0, incomplete=left is None)
    yield from (Amount(deb.bytes) for deb in debs.missing(packages.values()))
