"""The fields of a JobSet that this project writes, and no others: unknown ones are refused.

From the published schemas of JobSet v1alpha2 and of Kubernetes 1.37 (batch/v1, core/v1), narrowed
to the fields in use.
"""

from __future__ import annotations

from typing import Any


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_TRUTH = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_LABELS = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?$"},
    "additionalProperties": {
        "type": "string",
        "pattern": r"^([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?$",
        "maxLength": 63,
    },
}
_QUANTITIES = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": "^[0-9]+m?$"},
}
_VARIABLE = {
    "oneOf": [
        _object({"name": _TEXT, "value": _TEXT}),
        _object({"name": _TEXT, "valueFrom": _object({"fieldRef": _object({"fieldPath": _TEXT})})}),
    ]
}
_CONTAINER = _object(
    {
        "name": _NAME,
        "image": {"type": "string", "pattern": "@sha256:[0-9a-f]{64}$"},
        "env": _list(_VARIABLE),
        "volumeMounts": _list(_object({"name": _NAME, "mountPath": _TEXT})),
        "securityContext": _object(
            {
                "allowPrivilegeEscalation": _TRUTH,
                "capabilities": _object({"drop": _TEXTS}),
                "readOnlyRootFilesystem": _TRUTH,
            }
        ),
    },
    {
        "command": _TEXTS,
        "args": _TEXTS,
        "resources": _object({}, {"requests": _QUANTITIES, "limits": _QUANTITIES}),
    },
)
_TOLERATION = _object(
    {"key": _TEXT, "operator": _one_of("Exists", "Equal"), "effect": _one_of("NoSchedule")},
    {"value": _TEXT},
)
_POD = _object(
    {
        "restartPolicy": _one_of("Never"),  # a pod failure policy needs it
        "automountServiceAccountToken": _TRUTH,
        "enableServiceLinks": _TRUTH,
        "securityContext": _object(
            {"seccompProfile": _object({"type": _one_of("RuntimeDefault")})},
            {"runAsNonRoot": _TRUTH},
        ),
        "containers": {**_list(_CONTAINER), "maxItems": 1},
        "volumes": _list(
            _object(
                {"name": _NAME, "emptyDir": _object({}, {"medium": _one_of("Memory")})},
            )
        ),
    },
    {
        "serviceAccountName": _TEXT,
        "nodeSelector": _LABELS,
        "tolerations": _list(_TOLERATION),
    },
)
_POD_RULE = {
    "oneOf": [
        _object(
            {
                "action": _one_of("FailJob", "Ignore"),
                "onPodConditions": _list(
                    _object({"type": _one_of("DisruptionTarget"), "status": _one_of("True")})
                ),
            }
        ),
        _object(
            {
                "action": _one_of("FailJob"),
                "onExitCodes": _object(
                    {
                        "containerName": _one_of("trainer"),
                        "operator": _one_of("In"),
                        "values": {**_list({"type": "integer", "minimum": 1}), "uniqueItems": True},
                    }
                ),
            }
        ),
    ]
}
_JOB = _object(
    {
        "completionMode": _one_of("Indexed"),
        "completions": {**_COUNT, "minimum": 1},
        "parallelism": {**_COUNT, "minimum": 1},
        "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
        "backoffLimit": _COUNT,
        "template": _object({"metadata": _object({"labels": _LABELS}), "spec": _POD}),
    },
    {"podFailurePolicy": _object({"rules": {**_list(_POD_RULE), "maxItems": 20}})},
)
_RULE = _object(
    {
        "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "action": _one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        "onJobFailureReasons": _list(
            _one_of("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
        ),
    },
    {"onJobFailureMessagePatterns": _list(_TEXT)},
)
SCHEMA = _object(
    {
        "apiVersion": _one_of("jobset.x-k8s.io/v1alpha2"),
        "kind": _one_of("JobSet"),
        "metadata": _object({"name": _NAME, "labels": _LABELS}, {"namespace": _NAME}),
        "spec": _object(
            {
                "network": _object(
                    {
                        "enableDNSHostnames": _TRUTH,
                        "subdomain": _NAME,
                        "publishNotReadyAddresses": _TRUTH,
                    }
                ),
                "successPolicy": _object(
                    {"operator": _one_of("All"), "targetReplicatedJobs": _TEXTS}
                ),
                "replicatedJobs": _list(
                    _object(
                        {
                            "name": _one_of("chief", "worker", "ps", "evaluator"),
                            "replicas": {"const": 1},
                            "template": _object({"spec": _JOB}),
                        }
                    )
                ),
            },
            {
                "failurePolicy": _object(
                    {
                        "maxRestarts": _COUNT,
                        "restartStrategy": _one_of("Recreate", "BlockingRecreate"),
                        "rules": _list(_RULE),
                    }
                )
            },
        ),
    }
)
