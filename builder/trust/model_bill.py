"""The bill of materials of a model, as CycloneDX 1.6 has it (an ML-BOM): the model's files, what it
was trained on, with which options, in which image."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6

from builder.registry import Reference
from builder.trust.sbom import PREFIX, container

FILE: Final = "model.cdx.json"
"""In a job's folder."""


def bill(name: str, content: Mapping[str, Any], image: Reference, measured: Any) -> dict[str, Any]:
    """Return the CycloneDX document of a model.

    name: of its job. content: provenance.json. measured: the metrics of evaluation.json, {} where
    the program wrote none.
    """
    options, records = content.get("options", {}), content.get("records", {})
    digest = hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
    data = Component(
        type=ComponentType.DATA,
        name=str(options.get("records") or "records"),
        bom_ref="records",
        properties=[Property(name=f"{PREFIX}:fingerprint", value=digest)],
    )
    trained_in = container(image, image.digest)
    model = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=name,
        bom_ref="model",
        components=[_file(path, sha256) for path, sha256 in content["files"].items()],
        properties=[
            Property(name=f"{PREFIX}:option:{option}", value=json.dumps(value))
            for option, value in options.items()
        ],
    )
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, content], sort_keys=True))
    bom = Bom(serial_number=serial, components=[data, trained_in])
    bom.metadata.component = model
    bom.register_dependency(model, [data, trained_in])
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"].pop("timestamp")  # the same folder gives the same document
    metrics = [{"type": metric, "value": str(value)} for metric, value in measured.items()]
    document["metadata"]["component"]["modelCard"] = {  # which the library does not write
        "modelParameters": {
            "approach": {"type": "supervised"},
            "datasets": [{"ref": "records"}],
            **({"modelArchitecture": options["model"]} if options.get("model") else {}),
        },
        "quantitativeAnalysis": {"performanceMetrics": metrics},
    }
    return document


def _file(path: str, sha256: str) -> Component:
    return Component(
        type=ComponentType.FILE,
        name=path,
        bom_ref=f"file:{path}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
    )


def measured(folder: Path) -> dict[str, Any]:
    """Return the metrics that the trainer wrote into a job's folder; {} where it did not."""
    try:
        metrics = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["metrics"]
        return dict(metrics)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
