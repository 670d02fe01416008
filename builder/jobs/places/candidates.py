"""The ways to run a job as they can be sent: each checked, with its image, its place and its price.

All have one key, a hash of their own keys, so that a job is found in whichever way it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.core import files
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.jobs import description, images
from builder.jobs.cost import quote
from builder.jobs.cost.prices import Prices
from builder.jobs.description import DEFAULT_PATIENCE, Job
from builder.jobs.images import ProgramFolder
from builder.jobs.places import choose
from builder.jobs.places.kubernetes import cluster
from builder.jobs.places.kubernetes import place as kubernetes
from builder.jobs.places.kubernetes import prepare as for_a_cluster
from builder.jobs.places.protocol import Place
from builder.jobs.places.vertex import prepare as for_vertex
from builder.jobs.places.vertex.place import VertexAI
from builder.jobs.places.vertex.prepare import VertexOptions
from builder.jobs.ready import Image, Ready
from builder.jobs.room.choices import Choice, choices
from builder.jobs.submission import Candidate

KEY_LENGTH = 12


@dataclass(frozen=True)
class SendOptions:
    """What the command line says. on: a place, None for Vertex AI. vertex, cluster: the options of
    each. send: the job is to be sent, so images are taken from their registry."""

    on: str | None
    vertex: Mapping[str, str | None]
    cluster: Mapping[str, str | None]
    arguments: tuple[str, ...] = ()
    package: ProgramFolder | None = None
    send: bool = True

    def refuse(self, flags: Mapping[str, str | None], why: str) -> None:
        """Raises InputError for a flag that was given and has no meaning."""
        for name, value in flags.items():
            if value is not None:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag}: {why}", f"remove {flag}")


@dataclass(frozen=True)
class Ways:
    """The ways to run a job, in the order in which they are tried. left_out: those that cannot be
    sent, with the reason."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...] = ()


def ways(
    root: Path,
    name: str,
    settings: Settings,
    asked: SendOptions,
    prices: Prices,
    on_event: OnEvent = ignore,
) -> Ways:
    """Every way to run a job that can be sent. Of `cheapest` the cheapest stands first, and those
    without a known price last. Raises InputError, OutsideError, CheckFailed."""
    job = description.load(root, name)
    found = choices(job, images.targets(root))
    if job.chooses:
        asked.refuse({"region": asked.vertex.get("region")}, f"{name} names its regions itself")
    if not any(choose.KUBERNETES in (one.on, asked.on) for one in found):
        asked.refuse(asked.cluster, f"--on {asked.on or choose.VERTEX} has none")
    if all((one.on or asked.on) == choose.KUBERNETES for one in found):
        asked.refuse(asked.vertex, "--on kubernetes has none")
    prepare = _Preparing(root, settings, asked, on_event, {}, {})
    made, left = list[Candidate](), list[str]()
    for one in found:
        try:
            made.append(_candidate(*prepare(one), prices))
        except InputError as error:
            if not one.optional:
                raise
            left.append(f"{_told(one)} is left out: {error.message}")
    if not made:
        raise InputError(
            f"{description.where(job, 'cheapest')}: no way is left to run it: {left[0]}"
            if left
            else f"{description.where(job, 'cheapest')}: no region has any of these accelerators",
            "write other accelerators or regions; builder job render checks the job itself",
        )
    if job.cheapest:
        made.sort(key=lambda one: (one.usd is None, one.usd or 0.0))
    return Ways(grouped(made, job) if job.chooses else tuple(made), tuple(left))


def _told(one: Choice) -> str:
    job, carried = one.job, one.job.accelerators
    what = f" with {carried.count} x {carried.type}" if carried else ""
    return f"{job.machine}{what} in {job.region}, {job.scheduling.strategy}"


def _candidate(place: Place[Any], ready: Ready, prices: Prices) -> Candidate:
    chief = ready.placements[0]
    told = f"{chief}, {ready.job.scheduling.strategy}, {place.title}, {place.where}"
    return Candidate(place, ready, told, usd=quote.hourly(ready, prices))


def grouped(made: list[Candidate], job: Job) -> tuple[Candidate, ...]:
    """The candidates with one key for all, and how long each may wait for its machines."""
    own = [one.place.key(one.request) for one in made]
    group = files.hash_of(*sorted(own))[:KEY_LENGTH]
    patience = float(job.scheduling.patience or DEFAULT_PATIENCE)
    return tuple(
        replace(
            one,
            request=replace(one.request, group=group, choice=key),
            patience=float(one.request.job.scheduling.max_wait or patience),
        )
        for one, key in zip(made, own, strict=True)
    )


@dataclass(frozen=True)
class _Preparing:
    """Makes a choice ready. Images are looked up once each, places connected once."""

    root: Path
    settings: Settings
    asked: SendOptions
    on_event: OnEvent
    images: dict[str, Image]
    places: dict[object, Place[Any]]

    def __call__(self, one: Choice) -> tuple[Place[Any], Ready]:
        known = self.images.get(one.job.image)
        on_a_cluster = (one.on or self.asked.on) == choose.KUBERNETES
        place, ready = (self._clusters if on_a_cluster else self._vertex)(one.job, known)
        if known is None:
            self.images[one.job.image] = ready.image
        return place, ready

    def _vertex(self, job: Job, known: Image | None) -> tuple[Place[Any], Ready]:
        wanted = VertexOptions(
            **self.asked.vertex,
            pushed=self.asked.send,
            package=self.asked.package,
            arguments=self.asked.arguments,
            bucket=self.asked.send,
            image=known,
        )
        ready, where = for_vertex.prepare(self.root, job, self.settings, wanted, self.on_event)
        return self._once(where, lambda: VertexAI(where)), ready

    def _clusters(self, job: Job, known: Image | None) -> tuple[Place[Any], Ready]:
        where = cluster.load(self.root, self.asked.cluster)
        place = self._once(where, lambda: kubernetes.connect(where))
        assert isinstance(place, kubernetes.Kubernetes)
        if not self.asked.send:
            return place, for_a_cluster.planned(self.root, job, self.settings, place.cluster)
        ready = for_a_cluster.prepare(
            self.root,
            job,
            self.settings,
            place.cluster,
            self.asked.send,
            self.asked.package,
            self.asked.arguments,
            known,
            self.on_event,
        )
        return place, ready

    def _once(self, where: object, connect: Callable[[], Place[Any]]) -> Place[Any]:
        if where not in self.places:
            self.places[where] = connect()
        return self.places[where]
