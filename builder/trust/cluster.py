"""The table [trust] for a cluster: what each admission controller has to be told.

Each admits an image of the project's repository where one of `prove` signed it. policy-controller
and Kyverno also ask for the least suite and the greatest age. Binary Authorization asks for a
signature by a key, and for no more.

Sources: sigstore/policy-controller, pkg/apis/policy/v1beta1/clusterimagepolicy_types.go,
pkg/webhook/policy/rego.go (Rego v0, the rule `isCompliant` of the package `sigstore`) and
pkg/webhook/validator.go (bundles are for identities, a key's statements lie under tags);
kyverno/kyverno, pkg/image/verifiers/ivpol/cosign, pkg/cel/libs/imageverify, and kyverno/sdk,
extensions/cel/libs/time; Binary Authorization v1, projects.platforms.policies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from builder.core.errors import InputError
from builder.core.trustsettings import SUITES
from builder.registry import Reference
from builder.trust import statements
from builder.trust.bundle import Trusted
from builder.trust.keys import PublicKey
from builder.trust.policy import Policy

_NANOSECONDS: Final = 1_000_000_000


def image_policy(where: Reference, policy: Policy) -> dict[str, Any]:
    """The ClusterImagePolicy of Sigstore's policy-controller. One signer is enough."""
    return {
        "apiVersion": "policy.sigstore.dev/v1beta1",
        "kind": "ClusterImagePolicy",
        "metadata": {"name": _name(where)},
        "spec": {
            "images": [{"glob": f"{where.name}@*"}, {"glob": f"{where.name}:*"}],
            "authorities": [
                {
                    "name": f"prover-{number}",
                    **_authority(one),
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


def validating_policy(where: Reference, policy: Policy) -> dict[str, Any]:
    """The ImageValidatingPolicy of Kyverno. One signer is enough."""
    provers = [f"prover{number}" for number, _ in enumerate(policy.prove, 1)]
    asked = f"attestations.receipt, [{', '.join(f'attestors.{name}' for name in provers)}]"
    receipt = "extractPayload(image, attestations.receipt).predicate"
    rules = {
        f"verifyAttestationSignatures(image, {asked}) > 0": "nobody who is trusted proved it",
        f"{receipt}.checks.all(check, check.passed)": "a check of its proof did not pass",
    }
    if policy.suite:
        rules[f"{receipt}.suite in {json.dumps(_suites(policy))}"] = "its proof asks for too little"
    if policy.age is not None:
        age = f'duration("{int(policy.age)}s")'
        rules[f"time.now() - timestamp({receipt}.made_at) <= {age}"] = "its proof is too old"
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": _name(where)},
        "spec": {
            "validationActions": ["Deny"],
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchImageReferences": [{"glob": f"{where.name}@*"}, {"glob": f"{where.name}:*"}],
            "attestors": [
                {"name": name, "cosign": _attestor(one)}
                for name, one in zip(provers, policy.prove, strict=True)
            ],
            "attestations": [{"name": "receipt", "intoto": {"type": statements.RECEIPT}}],
            "validations": [
                {"expression": f"images.{kind}.all(image, {rule})", "message": message}
                for rule, message in rules.items()
                for kind in kinds
            ],
        },
    }


def platform_policy(_: Reference, policy: Policy) -> dict[str, Any]:
    """The platform policy of Binary Authorization. Raises InputError for what it cannot ask."""
    if not all(isinstance(one, PublicKey) for one in policy.prove):
        raise InputError(
            "Binary Authorization knows keys alone, and `prove` of [trust] names an identity",
            "push with a key as well, and name only keys in prove",
        )
    return {
        "gkePolicy": {
            "checkSets": [
                {
                    "displayName": "proven",
                    "checks": [
                        {
                            "displayName": "signed by one of prove",
                            "sigstoreSignatureCheck": {
                                "sigstoreAuthorities": [
                                    {
                                        "displayName": f"prover-{number}",
                                        "publicKeySet": {"publicKeys": [{"publicKeyPem": one.pem}]},
                                    }
                                    for number, one in enumerate(policy.prove, 1)
                                    if isinstance(one, PublicKey)
                                ]
                            },
                        }
                    ],
                }
            ]
        }
    }


WRITERS: Final[Mapping[str, Callable[[Reference, Policy], dict[str, Any]]]] = {
    "policy-controller": image_policy,
    "kyverno": validating_policy,
    "binary-authorization": platform_policy,
}
"""What writes the policy of each controller."""


def rule(policy: Policy) -> str:
    """What a receipt has to say, in Rego: every check passed, the suite, the age."""
    lines = [
        "package sigstore",
        "default isCompliant = false",
        "failed[name] { check := input.predicate.checks[_]; not check.passed; name := check.name }",
        "isCompliant {",
        f"  input.predicateType == {json.dumps(statements.RECEIPT)}",
        "  count(input.predicate.checks) > 0",
        "  count(failed) == 0",
        f"  {json.dumps(_suites(policy))}[_] == input.predicate.suite",
    ]
    if policy.age is not None:
        most = int(policy.age) * _NANOSECONDS
        lines.append(f"  time.now_ns() - time.parse_rfc3339_ns(input.predicate.made_at) <= {most}")
    return "\n".join([*lines, "}", ""])


def _suites(policy: Policy) -> list[str]:
    """The suites that are enough."""
    return list(SUITES[SUITES.index(policy.suite) :] if policy.suite else SUITES)


def _name(where: Reference) -> str:
    return where.repository.replace("/", "-").replace("_", "-")


def _authority(one: Trusted) -> dict[str, Any]:
    """Who signed, as policy-controller names it."""
    if isinstance(one, PublicKey):
        return {"key": {"data": one.pem, "hashAlgorithm": "sha256"}}
    return {
        "signatureFormat": "bundle",
        "keyless": {"url": "https://fulcio.sigstore.dev", "identities": _identities(one)},
    }


def _attestor(one: Trusted) -> dict[str, Any]:
    """Who signed, as Kyverno names it. Nothing that a key signs is in a public log."""
    if isinstance(one, PublicKey):
        unlogged = {"insecureIgnoreTlog": True, "insecureIgnoreSCT": True}
        return {"key": {"data": one.pem, "hashAlgorithm": "sha256"}, "ctlog": unlogged}
    return {"keyless": {"identities": _identities(one)}}


def _identities(one: Trusted) -> list[dict[str, str]]:
    """An identity. Raises InputError where another Sigstore than the public one vouches for it."""
    assert not isinstance(one, PublicKey)
    if one.trusted_root is not None:
        raise InputError(
            "trusted_root of [trust] names a Sigstore that a cluster has to be told about",
            "leave trusted_root out for this call, and add your own root to what it writes",
        )
    return [{"issuer": one.issuer, "subject": one.name}]
