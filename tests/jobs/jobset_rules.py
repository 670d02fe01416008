"""What an API server and JobSet's webhook refuse: by schemas, and by rules beside.

Schemas: the fields of a JobSet (v1alpha2), which test_kubernetes.py compares with JobSet's own
models in `kubeflow-trainer-api`, and those of Kubernetes for each role's Job, as
`kubernetes-validate` brings them, strict. A validator of twenty lines reads them: the usual one
takes a second to load. Rules: jobset_webhook.go, and the validation of names, labels and pod
failure policies in Kubernetes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

KUBERNETES = "v1.37.0-local-strict"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_POLICY_ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")
_TYPES = {
    **{"object": dict, "array": list, "string": str, "boolean": bool, "integer": int},
    **{"number": (int, float), "null": type(None)},
}


def _fields(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _text(*values: str) -> dict[str, Any]:
    return {"type": "string", **({"enum": values} if values else {})}


_INTEGER, _BOOLEAN, _ANY = {"type": "integer"}, {"type": "boolean"}, {"type": "object"}
_RULE = _fields(
    name=_text(),
    action=_text("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    onJobFailureReasons=_list(_text()),
    onJobFailureMessagePatterns=_list(_text()),
    targetReplicatedJobs=_list(_text()),
)
_JOB = {"$ref": "io.k8s.api.batch.v1.JobTemplateSpec"}
SPEC: Final = _fields(
    network=_fields(
        enableDNSHostnames=_BOOLEAN, subdomain=_text(), publishNotReadyAddresses=_BOOLEAN
    ),
    successPolicy=_fields(operator=_text("All", "Any"), targetReplicatedJobs=_list(_text())),
    failurePolicy=_fields(
        maxRestarts=_INTEGER,
        restartStrategy=_text("Recreate", "BlockingRecreate"),
        rules=_list(_RULE),
    ),
    startupPolicy=_fields(startupPolicyOrder=_text("AnyOrder", "InOrder")),
    replicatedJobs=_list(
        _fields(name=_text(), replicas=_INTEGER, template=_JOB, dependsOn=_list(_ANY))
    ),
    suspend=_BOOLEAN,
    coordinator=_fields(replicatedJob=_text(), jobIndex=_INTEGER, podIndex=_INTEGER),
    managedBy=_text(),
    ttlSecondsAfterFinished=_INTEGER,
)
JOBSET: Final = _fields(
    apiVersion=_text("jobset.x-k8s.io/v1alpha2"), kind=_text("JobSet"), metadata=_ANY, spec=SPEC
)


def problems(jobset: Mapping[str, Any]) -> list[str]:
    """Return everything that a cluster would say against a JobSet; [] for one that it takes."""
    schema = [f"strict decoding error: {text}" for text in _differs(JOBSET, jobset, "JobSet")]
    return schema or [*_by_webhook(jobset), *_by_rules(jobset)]


@functools.cache
def _definitions() -> dict[str, Any]:
    package = importlib.metadata.distribution("kubernetes-validate")
    folder = Path(str(package.locate_file("kubernetes_validate/kubernetes-json-schema")))
    schema: dict[str, Any] = json.loads((folder / KUBERNETES / "_definitions.json").read_text())[
        "$defs"
    ]
    return schema


def _differs(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    """Say where a value is not what a schema allows. A field that is not named is an error."""
    if reference := schema.get("$ref"):
        yield from _differs(_definitions()[reference.rpartition("/")[2]], value, path)
        return
    for choice in ("oneOf", "anyOf"):
        if choice in schema and all(any(_differs(each, value, path)) for each in schema[choice]):
            yield f"{path}: {value!r} is none of what is allowed"
    kinds = schema.get("type") or []
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)  # type: ignore[arg-type]
        for kind in kinds
    )
    if kinds and not fits:
        yield f"{path}: {value!r} is not of type {kinds[0]}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _differs(schema["items"], item, f"{path}[{number}]")
    elif isinstance(value, dict):
        fields, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name in schema.get("required") or []:
            if name not in value:
                yield f"{path}.{name} is missing"
        for name, item in value.items():
            if name in fields or isinstance(others, dict):
                yield from _differs(fields.get(name, others), item, f"{path}.{name}")
            elif fields:
                yield f'unknown field "{path}.{name}"'


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
    for target in (spec.get("successPolicy") or {}).get("targetReplicatedJobs") or []:
        if target not in roles:
            yield f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"
    rules = (spec.get("failurePolicy") or {}).get("rules") or []
    if len({rule["name"] for rule in rules}) != len(rules):
        yield "spec.failurePolicy.rules: names repeat"
    for rule in rules:
        for pattern in rule.get("onJobFailureMessagePatterns") or []:
            re.compile(pattern)
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]):
            yield f"spec.failurePolicy.rules: {rule['name']}"


def _by_rules(jobset: Mapping[str, Any]) -> Iterator[str]:
    """Kubernetes, pkg/apis: validation of labels, variables, volumes and pod failure policies."""
    yield from _labels(jobset["metadata"].get("labels") or {}, "metadata")
    for role in jobset["spec"]["replicatedJobs"]:
        job, owner = role["template"]["spec"], role["name"]
        pod = job["template"]["spec"]
        yield from _labels((job["template"].get("metadata") or {}).get("labels") or {}, owner)
        yield from _labels(pod.get("nodeSelector") or {}, owner)
        volumes = [volume["name"] for volume in pod.get("volumes") or []]
        for container in pod["containers"]:
            for variable in container.get("env") or []:
                if not _VARIABLE.fullmatch(variable["name"]):
                    yield f"{owner}: env: {variable['name']}"
            for mount in container.get("volumeMounts") or []:
                if mount["name"] not in volumes:
                    yield f"{owner}: volumeMounts: {mount['name']} is no volume"
            limits = (container.get("resources") or {}).get("limits") or {}
            requests = (container.get("resources") or {}).get("requests") or {}
            for device in (*limits, *requests):
                if "/" in device and requests.get(device, limits.get(device)) != limits.get(device):
                    yield f"{owner}: {device}: limit must be set, and equal to the request"
        if len(set(volumes)) != len(volumes):
            yield f"{owner}: volumes: names repeat"
        yield from _failure_policy(job, owner)


def _failure_policy(job: Mapping[str, Any], owner: str) -> Iterator[str]:
    """pkg/apis/batch/validation: validatePodFailurePolicy."""
    policy = job.get("podFailurePolicy")
    if policy is None:
        return
    if job["template"]["spec"].get("restartPolicy") != "Never":
        yield f"{owner}: podFailurePolicy: only supported with restartPolicy: Never"
    names = [container["name"] for container in job["template"]["spec"]["containers"]]
    if not 0 < len(policy["rules"]) <= 20:
        yield f"{owner}: podFailurePolicy: 1 to 20 rules"
    for rule in policy["rules"]:
        if rule["action"] not in _POLICY_ACTIONS:
            yield f"{owner}: podFailurePolicy: {rule['action']}"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield f"{owner}: podFailurePolicy: specifying one of onExitCodes and onPodConditions"
        codes = rule.get("onExitCodes")
        if codes and (
            codes.get("containerName", names[0]) not in names
            or codes["values"] != sorted(set(codes["values"]))
            or (codes["operator"] == "In" and 0 in codes["values"])
        ):
            yield f"{owner}: podFailurePolicy: onExitCodes"


def _labels(labels: Mapping[str, str], owner: str) -> Iterator[str]:
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name) or len(name.rpartition("/")[2]) > 63:
            yield f"{owner}: labels: {name}"
        if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            yield f"{owner}: labels: {name}: {value!r}"


def _is_label(text: str) -> bool:
    return len(text) <= 63 and DNS_LABEL.fullmatch(text) is not None
