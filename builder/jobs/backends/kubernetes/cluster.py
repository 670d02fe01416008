"""What only a cluster asks for: context, namespace, queue, accounts, how its nodes are chosen.

A flag wins over the environment (BUILDER_KUBERNETES_QUEUE ...), and both over the table
[kubernetes] of builder.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from builder.core import settings


@dataclass(frozen=True)
class Cluster:
    """Where a JobSet goes.

    namespace: None for the context's own. queue: a LocalQueue of Kueue, None for none.
    service_account: of Kubernetes, None for the namespace's default. nodes: gke selects nodes by
    GKE's labels; any asks for nothing but `nvidia.com/gpu`. pull_secret: with which the nodes pull
    the image. context: of kubeconfig, None for the current one.
    """

    namespace: str | None = None
    queue: str | None = None
    service_account: str | None = None
    nodes: Literal["gke", "any"] = "gke"
    pull_secret: str | None = None
    context: str | None = None


NAMES = tuple(field.name for field in fields(Cluster))


def load(
    root: Path, flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None
) -> Cluster:
    """Return the cluster of the project at `root`; a flag that is None was not given.

    Raises InputError that names where the bad value came from.
    """
    chosen = settings.load(root, environ=environ, tables={"kubernetes": flags})
    return Cluster(**chosen.kubernetes.model_dump())
