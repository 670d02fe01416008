"""What an API server and JobSet's webhook refuse: by schemas, and by rules beside.

Schemas: the fields of a JobSet (v1alpha2), which test_kubernetes.py compares with JobSet's own
models in `kubeflow-trainer-api`, and those of Kubernetes for each role's Job, as
`kubernetes-validate` brings them, strict. Rules: jobset_webhook.go, and Kubernetes' of labels.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict/_definitions.json"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def _fields(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


ANYWAY = "RestartJobSetAndIgnoreMaxRestarts"
_TEXT, _BOOLEAN = {"type": "string"}, {"type": "boolean"}
SPEC: Final = _fields(
    network=_fields(
        enableDNSHostnames=_BOOLEAN, subdomain=_TEXT, publishNotReadyAddresses=_BOOLEAN
    ),
    failurePolicy=_fields(
        maxRestarts={"type": "integer"},
        restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
        rules=_list(
            _fields(
                name=_TEXT,
                action={"enum": ["FailJobSet", "RestartJobSet", ANYWAY]},
                onJobFailureReasons=_list({"enum": ["BackoffLimitExceeded", "PodFailurePolicy"]}),
                onJobFailureMessagePatterns=_list(_TEXT),
                targetReplicatedJobs=_list(_TEXT),
            )
        ),
    ),
    successPolicy=_fields(operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_list(_TEXT)),
    replicatedJobs=_list(
        _fields(
            name=_TEXT,
            replicas={"type": "integer"},
            template={"$ref": "#/$defs/io.k8s.api.batch.v1.JobTemplateSpec"},
        )
    ),
    ttlSecondsAfterFinished={"type": "integer"},
)
JOBSET: Final = _fields(
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata={"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
    spec=SPEC,
)


def problems(jobset: Mapping[str, Any]) -> list[str]:
    """Return everything that a cluster would say against a JobSet; [] for one that it takes."""
    errors = [
        f"strict decoding error: {error.json_path}: {error.message}"
        for error in _validator().iter_errors(jobset)
    ]
    return errors or [*_by_webhook(jobset), *_by_labels(jobset)]


@functools.cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    package = importlib.metadata.distribution("kubernetes-validate")
    definitions = json.loads(Path(str(package.locate_file(DEFINITIONS))).read_text())["$defs"]
    return Draft202012Validator({**JOBSET, "$defs": definitions})


def _by_webhook(jobset: Mapping[str, Any]) -> Iterator[str]:
    """pkg/webhooks/jobset_webhook.go, ValidateCreate."""
    name, spec = jobset["metadata"].get("name", ""), jobset["spec"]
    subdomain = (spec.get("network") or {}).get("subdomain", name)
    if not _is_label(subdomain):
        yield f"spec.network.subdomain: {subdomain}"
    roles = [role["name"] for role in spec["replicatedJobs"]]
    if len(set(roles)) != len(roles):
        yield "spec.replicatedJobs: names repeat"
    for role in spec["replicatedJobs"]:
        job = f"{name}-{role['name']}-{role.get('replicas', 1) - 1}"
        pod = f"{job}-{role['template']['spec'].get('completions', 1) - 1}-abcde"
        for child in (job, pod):
            if not _is_label(child):
                yield f"spec.replicatedJobs: {child}: not a DNS-1035 label of at most 63 characters"
    rules = (spec.get("failurePolicy") or {}).get("rules") or []
    if len({rule["name"] for rule in rules}) != len(rules):
        yield "rule names are not unique"
    for rule in rules:
        if not _RULE.fullmatch(rule["name"]):
            yield f"invalid failure policy rule name '{rule['name']}'"
    for target in (spec.get("successPolicy") or {}).get("targetReplicatedJobs") or []:
        if target not in roles:
            yield f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"


def _by_labels(jobset: Mapping[str, Any]) -> Iterator[str]:
    """pkg/apis: the values of labels and of node selectors."""
    templates = [role["template"]["spec"]["template"] for role in jobset["spec"]["replicatedJobs"]]
    selectors = [template["spec"].get("nodeSelector") or {} for template in templates]
    labelled = [item.get("metadata", {}).get("labels") or {} for item in (jobset, *templates)]
    for labels in (*labelled, *selectors):
        for name, value in labels.items():
            if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
                yield f"labels: {name}: {value!r}"


def _is_label(text: str) -> bool:
    return len(text) <= 63 and DNS_LABEL.fullmatch(text) is not None
