"""What an API server and JobSet's webhook refuse: by the published schemas, and by rules beside.

Schemas: JobSet's own models as `kubeflow-trainer-api` publishes them; those of Kubernetes for each
role's Job, strict, as `kubernetes-validate` brings them. Rules: jobset_webhook.go and the
validation of names, labels and pod failure policies in Kubernetes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubernetes_validate import utils
from pydantic import ValidationError
from referencing import Registry, Resource

VERSION = "1.37.0"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_POLICY_ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")


@functools.cache
def _schema(kind: str) -> jsonschema.Draft202012Validator:
    """The validator of a built-in kind, such as `job-batch-v1`."""
    folder = f"kubernetes-json-schema/v{VERSION}-local-strict"
    schema = utils.schema_contents(f"{folder}/{kind}.json", VERSION)
    definitions = utils.schema_contents(f"{folder}/_definitions.json", VERSION)
    registry: Registry[Any] = Registry()
    for one in (schema, definitions):
        registry = Resource.from_contents(one) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)


def problems(jobset: Mapping[str, Any]) -> list[str]:
    """Everything that a cluster would say against a JobSet; [] for one that it takes."""
    return [*_by_schema(jobset)] or [*_by_webhook(jobset), *_by_rules(jobset)]


def _by_schema(jobset: Mapping[str, Any]) -> Iterator[str]:
    try:
        read = JobsetV1alpha2JobSet.from_dict(dict(jobset))
    except (ValidationError, ValueError) as error:
        yield f"JobSet: {error}"
        return
    assert read is not None
    yield from _lost(dict(jobset), read.to_dict(), "")
    for one in jobset["spec"].get("replicatedJobs") or []:
        job = {"apiVersion": "batch/v1", "kind": "Job", **one["template"]}
        for error in _schema("job-batch-v1").iter_errors(job):
            path = ".".join(str(step) for step in error.path)
            yield f"{one['name']}: strict decoding error: {path}: {error.message[:200]}"


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    """Fields that the models do not know: they left them out."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for name, value in given.items():
            if name not in kept and value not in ({}, None):
                yield f'strict decoding error: unknown field "{path}{name}"'
            elif name in kept:
                yield from _lost(value, kept[name], f"{path}{name}.")
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{path.removesuffix('.')}[{number}].")


def _by_webhook(jobset: Mapping[str, Any]) -> Iterator[str]:
    """pkg/webhooks/jobset_webhook.go, ValidateCreate."""
    name, spec = jobset["metadata"].get("name", ""), jobset["spec"]
    subdomain = (spec.get("network") or {}).get("subdomain", name)
    if not _is_label(subdomain):
        yield f"spec.network.subdomain: {subdomain}"
    named = [one["name"] for one in spec["replicatedJobs"]]
    if len(set(named)) != len(named):
        yield "spec.replicatedJobs: names repeat"
    for one in spec["replicatedJobs"]:
        job = f"{name}-{one['name']}-{one.get('replicas', 1) - 1}"
        pod = f"{job}-{one['template']['spec'].get('completions', 1) - 1}-abcde"
        for made in (job, pod):
            if not _is_label(made):
                yield f"spec.replicatedJobs: {made}: not a DNS-1035 label of at most 63 characters"
    for target in (spec.get("successPolicy") or {}).get("targetReplicatedJobs") or []:
        if target not in named:
            yield f"invalid replicatedJob name '{target}' does not appear in .spec.ReplicatedJobs"
    rules = (spec.get("failurePolicy") or {}).get("rules") or []
    if len({one["name"] for one in rules}) != len(rules):
        yield "spec.failurePolicy.rules: names repeat"
    for rule in rules:
        for pattern in rule.get("onJobFailureMessagePatterns") or []:
            re.compile(pattern)
        if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]):
            yield f"spec.failurePolicy.rules: {rule['name']}"


def _by_rules(jobset: Mapping[str, Any]) -> Iterator[str]:
    """Kubernetes, pkg/apis: validation of labels, variables, volumes and pod failure policies."""
    yield from _labels(jobset["metadata"].get("labels") or {}, "metadata")
    for one in jobset["spec"]["replicatedJobs"]:
        job = one["template"]["spec"]
        pod, where = job["template"]["spec"], one["name"]
        yield from _labels((job["template"].get("metadata") or {}).get("labels") or {}, where)
        yield from _labels(pod.get("nodeSelector") or {}, where)
        volumes = [volume["name"] for volume in pod.get("volumes") or []]
        for container in pod["containers"]:
            for variable in container.get("env") or []:
                if not _VARIABLE.fullmatch(variable["name"]):
                    yield f"{where}: env: {variable['name']}"
            for mount in container.get("volumeMounts") or []:
                if mount["name"] not in volumes:
                    yield f"{where}: volumeMounts: {mount['name']} is no volume"
            limits = (container.get("resources") or {}).get("limits") or {}
            requests = (container.get("resources") or {}).get("requests") or {}
            for device in (*limits, *requests):
                if "/" in device and requests.get(device, limits.get(device)) != limits.get(device):
                    yield f"{where}: {device}: limit must be set, and equal to the request"
        if len(set(volumes)) != len(volumes):
            yield f"{where}: volumes: names repeat"
        yield from _failure_policy(job, where)


def _failure_policy(job: Mapping[str, Any], where: str) -> Iterator[str]:
    """pkg/apis/batch/validation: validatePodFailurePolicy."""
    policy = job.get("podFailurePolicy")
    if policy is None:
        return
    if job["template"]["spec"].get("restartPolicy") != "Never":
        yield f"{where}: podFailurePolicy: only supported with restartPolicy: Never"
    names = [one["name"] for one in job["template"]["spec"]["containers"]]
    if not 0 < len(policy["rules"]) <= 20:
        yield f"{where}: podFailurePolicy: 1 to 20 rules"
    for rule in policy["rules"]:
        if rule["action"] not in _POLICY_ACTIONS:
            yield f"{where}: podFailurePolicy: {rule['action']}"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield f"{where}: podFailurePolicy: specifying one of onExitCodes and onPodConditions"
        codes = rule.get("onExitCodes")
        if codes and (
            codes.get("containerName", names[0]) not in names
            or codes["values"] != sorted(set(codes["values"]))
            or (codes["operator"] == "In" and 0 in codes["values"])
        ):
            yield f"{where}: podFailurePolicy: onExitCodes"


def _labels(labels: Mapping[str, str], where: str) -> Iterator[str]:
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name) or len(name.rpartition("/")[2]) > 63:
            yield f"{where}: labels: {name}"
        if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            yield f"{where}: labels: {name}: {value!r}"


def _is_label(text: str) -> bool:
    return len(text) <= 63 and DNS_LABEL.fullmatch(text) is not None
