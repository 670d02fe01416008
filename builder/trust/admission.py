"""The policy of a project for the admission controller of a cluster, as a ClusterImagePolicy.

Sources: sigstore/policy-controller, pkg/apis/policy/v1beta1/clusterimagepolicy_types.go,
pkg/webhook/policy/rego.go (Rego v0, the rule `isCompliant` of the package `sigstore`) and
pkg/webhook/validator.go (bundles are for identities alone).
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.core.errors import InputError
from builder.registry import Reference
from builder.trust import dsse
from builder.trust.identities import OidcIdentity
from builder.trust.policy import Policy


def image_policy(repository: Reference, policy: Policy) -> str:
    """Return the YAML that admits what one of the identities of `prove` attests.

    Raises InputError where no identity is named, or another Sigstore than the public one vouches.
    """
    identities = [signer for signer in policy.prove if isinstance(signer, OidcIdentity)]
    if not identities:
        raise InputError(
            "policy-controller verifies bundles of identities only, and `prove` of [trust] names"
            " none (sigstore/policy-controller#1958)",
            "push with --keyless, and name its identity in prove",
        )
    if any(identity.trusted_root for identity in identities):
        raise InputError(
            "trusted_root of [trust] names a Sigstore that a cluster has to be told about",
            "leave trusted_root out for this call, and add your own root to what it writes",
        )
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("admission.yaml.j2").render(
        repository=repository,
        identities=identities,
        keys=len(identities) < len(policy.prove),
        predicate_type=dsse.RECEIPT,
        suites=policy.suites,
        age=None if policy.age is None else int(policy.age),
    )
