"""What only a cluster asks for: context, namespace, queue, accounts, how its nodes are chosen.

A flag wins over the environment (BUILDER_KUBERNETES_QUEUE ...), and both over the table
[kubernetes] of builder.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from builder.core.projectfile import PREFIX, ProjectFile, check_shapes, layered

TABLE = "kubernetes"

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMES = "a-z, 0-9 and -, at most 63, such as"
_SHAPES: Mapping[str, tuple[str, str]] = {
    "namespace": (_LABEL, f"{_NAMES} training"),
    "queue": (_LABEL, f"the name of a LocalQueue: {_NAMES} gpus"),
    "service_account": (
        rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*",
        f"the name of a ServiceAccount in the namespace, not Google's address: {_NAMES} trainer",
    ),
    "pull_secret": (
        rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*",
        f"the name of a Secret of the type kubernetes.io/dockerconfigjson: {_NAMES} registry",
    ),
    "nodes": ("gke|any", "gke or any"),
    "context": (r"\S+", "the name of a context: kubectl config get-contexts"),
}


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


NAMES = tuple(one.name for one in fields(Cluster))


def load(
    root: Path, flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None
) -> Cluster:
    """The cluster of the project at `root`; a flag that is None was not given.

    Raises InputError that names where the bad value came from.
    """
    written = ProjectFile.read(root).texts(NAMES, TABLE)
    chosen = layered(written, NAMES, f"{PREFIX}{TABLE.upper()}_", environ, flags)
    values: dict[str, Any] = dict(check_shapes(chosen, _SHAPES))
    return Cluster(**values)
