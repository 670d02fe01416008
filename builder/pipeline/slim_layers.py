"""Making an image from another one as a plan of builder/prove/slimming.py says.

The layers in which something changes are written anew. A layer on top has the records that say
something else then: RECORDs, the record of pruning, and the receipt.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from builder.audit.audited import Gpu
from builder.config.stack import RUNS_ON
from builder.core import files
from builder.core.errors import InputError
from builder.core.files import EPOCH
from builder.devicecode import records
from builder.devicecode.pruning.prune import PRUNED
from builder.devicecode.records import Row
from builder.image import opened, rewriting, wheel
from builder.image.layer import Compression, Layer
from builder.image.opened import OpenedImage
from builder.image.tarball import LayerWriter, folders_above
from builder.prove.image import Image
from builder.prove.slimming import FileChange, SlimmingPlan
from builder.reading.layers import Entry
from builder.registry import manifests

RECEIPT: Final = "training_image_slim.json"
"""The receipt in the new image, at its root."""
_FILE: Final = Entry(0, 0o644, 0, 0)


def receipt(
    name: str,
    gpu: Gpu | None,
    plan: SlimmingPlan,
    old: Sequence[Layer] = (),
    new: Sequence[Layer] = (),
) -> dict[str, Any]:
    """Return what became of an image as JSON-ready data. old, new: its layers, none where nothing
    was written. Sizes in bytes, those of layers as they are packed."""
    layers = [
        {
            "before": before.blob.digest if before else "",
            "after": after.blob.digest,
            "bytes_before": before.blob.size if before else 0,
            "bytes_after": after.blob.size,
        }
        for before, after in zip((*old, None)[: len(new)], new, strict=True)
    ]
    return {
        "image": name,
        "gpu": gpu and gpu.name,
        "compute_capability": str(gpu.capability) if gpu else None,
        "bytes_before": sum(layer.blob.size for layer in old),
        "bytes_after": sum(layer.blob.size for layer in new),
        "layers": layers,
        "files": list(map(asdict, plan.changes)),
        "left_alone": dict(plan.left),
    }


def make(
    name: str, source: OpenedImage, image: Image, plan: SlimmingPlan
) -> tuple[OpenedImage, SlimmingPlan]:
    """Return the new image, and the plan as it was carried out. Raises InputError for a layer whose
    bytes are not its own."""
    making = _Making(source, image, plan)
    layers = [making.layer(layer) for layer in source.image.layers]
    done = making.carried_out()
    top = making.top(done, receipt(name, image.gpu, done, source.image.layers, layers))
    made = opened.assembled(
        name, _configuration(image, layers, top), [each.blob for each in (*layers, top)]
    )
    return replace(source, image=made, image_id=""), done


def _configuration(image: Image, layers: Sequence[Layer], top: Layer) -> bytes:
    """Return that of the image, with the new layers and the label of what it runs on."""
    old, gpu = image.content.configuration, image.gpu
    config = dict(image.config)
    if gpu:
        config["Labels"] = {**(config.get("Labels") or {}), RUNS_ON: str(gpu.capability)}
    under = manifests.on_layers(old, (layer.diff_id for layer in layers))
    line = f"builder slim{f' --gpu {gpu.name}' if gpu else ''}: records of what changed"
    return manifests.configuration(under, config, [(top.diff_id, line)], EPOCH)


class _Making:
    """The layers of one new image. done: what became of each library that was to be pruned."""

    def __init__(self, source: OpenedImage, image: Image, plan: SlimmingPlan) -> None:
        self.source, self.tree, self.plan, self.gpu = source, image.tree, plan, image.gpu
        self.read = {layer.diff_id: layer for layer in image.content.layers}
        self.done: dict[tuple[str, str], rewriting.Pruned] = {}
        self.real = functools.cache(image.tree.resolve)
        names = {path for change in plan.changes for path in self._names(change)}
        alike = {path.rpartition("/")[2] for path in names}
        self.listing: dict[str, tuple[str, str]] = {}
        """The RECORDs that list a file that changes, each with its layer, and the path there of its
        bytes."""
        for path, record in self.tree.records.items():
            alike_ = (each for each in record.files if each.rpartition("/")[2] in alike)
            if record.package and any(self.real(each) in names for each in alike_):
                at = self.tree.layer[path]
                linked = (name for name, to in self.read[at].files.items() if to.hard == path)
                self.listing |= dict.fromkeys((path, *linked), (at, path))

    def layer(self, layer: Layer) -> Layer:
        changes = [each for each in self.plan.changes if each.layer == layer.diff_id]
        if not changes:
            return layer
        shared = {at.hard for at in self.read[layer.diff_id].files.values()}
        anew = {path for path, (at, _) in self.listing.items() if at == layer.diff_id} - shared
        edits = rewriting.Edits(
            frozenset(each.path for each in changes if each.action == "remove") | anew,
            {each.path: each.to for each in changes if each.action == "link"},
            frozenset(each.path for each in changes if each.action == "prune"),
        )
        path, capability = self.source.path(layer), self.gpu.capability if self.gpu else None
        with self.source.store.writing() as out:
            kind = layer.blob.media_type
            made, was, done = rewriting.write(path, kind, edits, capability, out)
            if was != layer.diff_id:
                raise InputError(f"its layer {layer.diff_id} has other bytes", "save it again")
            self.done |= {(layer.diff_id, path): each for path, each in done.items()}
            return self.source.store.keep(out, made)

    def carried_out(self) -> SlimmingPlan:
        """Return the plan with what pruning did in the end."""
        left, changes = dict(self.plan.left), []
        for change in self.plan.changes:
            done = self.done.get((change.layer, change.path))
            if done and done.left:
                left[change.path] = done.left
            else:
                after = change.before - done.gone if done else change.after
                changes.append(replace(change, after=after))
        return SlimmingPlan(tuple(changes), left)

    def top(self, plan: SlimmingPlan, said: Mapping[str, Any]) -> Layer:
        """Write the layer with the records and the receipt; folders keep owner and rights."""
        text = json.dumps(said, indent=1)
        content = {f"/{RECEIPT}": text.encode(), **dict(self._records(plan))}
        with self.source.store.writing() as out:
            writer, names = LayerWriter(out, Compression()), {path[1:] for path in content}
            for name in sorted(names | folders_above(names)):
                path = f"/{name}"
                at = self.tree.files.get(path) or self.tree.folders.get(path) or _FILE
                if path in content:
                    writer.file(name, content[path], mode=at.mode, owner=(at.uid, at.gid))
                else:
                    writer.folder(name, at.mode, (at.uid, at.gid))
            return self.source.store.keep(out, writer.close(files.hash_of(text)))

    def _names(self, change: FileChange) -> Iterator[str]:
        """Yield the names by which a container sees a file that changes."""
        linked = self.read[change.layer].files.items() if change.action == "prune" else ()
        for path in (change.path, *(path for path, at in linked if at.hard == change.path)):
            if self.tree.layer.get(path) == change.layer:
                yield path

    def _records(self, plan: SlimmingPlan) -> Iterator[tuple[str, bytes]]:
        rows: dict[str, Row | None] = {}
        for change in plan.changes:
            done = self.done.get((change.layer, change.path))
            pruned = (wheel.recorded(done.sha256), str(done.size)) if done else None
            row = ("", "") if change.action == "link" else pruned
            rows |= dict.fromkeys(self._names(change), row)
        for layer in self.source.image.layers:
            here = {of: path for path, (at, of) in self.listing.items() if at == layer.diff_id}
            for of, file in rewriting.files(self.source.path(layer), here) if here else ():
                text = file.read(records.LARGEST).decode("utf-8", "surrogateescape")
                for path in (path for path, (_, at) in self.listing.items() if at == of):
                    said = records.rewritten(path, text, rows, self.real)
                    yield path, said.encode("utf-8", "surrogateescape")
        if pruned_ := {path: row for path, row in rows.items() if row and row[0]}:
            before = self.tree.records.get(f"/{PRUNED}")
            known = {
                line.path: (wheel.recorded(bytes.fromhex(line.sha256)), str(line.size))
                for line in (before.lines if before else ())
            }
            out = io.StringIO()
            table = sorted((known | pruned_).items())
            lines = csv.writer(out, lineterminator="\n")
            lines.writerows((path.removeprefix("/"), *row) for path, row in table)
            yield f"/{PRUNED}", out.getvalue().encode("utf-8", "backslashreplace")
