"""The same policy for a cluster: a ClusterImagePolicy of Sigstore's policy-controller.

It admits an image of the project's repository where a key of `prove` signed its receipt, and the
receipt is of the least suite and not too old. The last two are a rule in Rego.

Sources: sigstore/policy-controller,
pkg/webhook/clusterimagepolicy/clusterimagepolicy_types.go and pkg/webhook/policy/rego.go (Rego v0,
the rule `isCompliant` of the package `sigstore`); `signatureFormat: bundle` from its version 0.13.
"""

from __future__ import annotations

import json
from typing import Any

from builder.core.trustsettings import SUITES
from builder.registry import Reference
from builder.trust import statements
from builder.trust.bundle import Trusted
from builder.trust.keys import PublicKey
from builder.trust.policy import Policy

_NANOSECONDS = 1_000_000_000


def image_policy(where: Reference, policy: Policy) -> dict[str, Any]:
    """The ClusterImagePolicy for the images of a repository. One key is enough."""
    return {
        "apiVersion": "policy.sigstore.dev/v1beta1",
        "kind": "ClusterImagePolicy",
        "metadata": {"name": where.repository.replace("/", "-").replace("_", "-")},
        "spec": {
            "images": [{"glob": f"{where.name}@*"}, {"glob": f"{where.name}:*"}],
            "authorities": [
                {
                    "name": f"prover-{number}",
                    "signatureFormat": "bundle",
                    **_signer(one),
                    "attestations": [
                        {
                            "name": "proven",
                            "predicateType": statements.RECEIPT,
                            "policy": {"type": "rego", "data": rule(policy)},
                        }
                    ],
                }
                for number, one in enumerate(policy.prove, 1)
            ],
        },
    }


def _signer(one: Trusted) -> dict[str, Any]:
    """Who signed, as an authority names it."""
    if isinstance(one, PublicKey):
        return {"key": {"data": one.pem, "hashAlgorithm": "sha256"}}
    identities = [{"issuer": one.issuer, "subject": one.name}]
    return {"keyless": {"url": "https://fulcio.sigstore.dev", "identities": identities}}


def rule(policy: Policy) -> str:
    """What a receipt has to say, in Rego: every check passed, the suite, the age."""
    suites = SUITES[SUITES.index(policy.suite) :] if policy.suite else SUITES
    lines = [
        "package sigstore",
        "default isCompliant = false",
        "failed[name] { check := input.predicate.checks[_]; not check.passed; name := check.name }",
        "isCompliant {",
        f"  input.predicateType == {json.dumps(statements.RECEIPT)}",
        "  count(input.predicate.checks) > 0",
        "  count(failed) == 0",
        f"  {json.dumps(list(suites))}[_] == input.predicate.suite",
    ]
    if policy.age is not None:
        most = int(policy.age) * _NANOSECONDS
        lines.append(f"  time.now_ns() - time.parse_rfc3339_ns(input.predicate.made_at) <= {most}")
    return "\n".join([*lines, "}", ""])
