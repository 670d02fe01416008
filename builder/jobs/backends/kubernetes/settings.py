"""The table [kubernetes] of builder.toml."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from builder.core.filemodel import FileModel, matches

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*"

Label = Annotated[
    str, matches(_LABEL, "a name in a cluster", "write a-z, 0-9 and -, at most 63: training")
]
ObjectName = Annotated[
    str,
    matches(
        _NAME,
        "an object's name in the namespace",
        "write a-z, 0-9 and -, at most 63: trainer; it is not Google's address",
    ),
]
Context = Annotated[
    str, matches(r"\S+", "a context", "write the name of one: kubectl config get-contexts")
]


class KubernetesSettings(FileModel):
    """Where JobSets go."""

    namespace: Label | None = None
    """None: the context's own."""
    queue: Label | None = None
    """A LocalQueue of Kueue."""
    service_account: ObjectName | None = None
    """Of Kubernetes; None: the namespace's default."""
    nodes: Literal["gke", "any"] = "gke"
    """gke selects nodes by GKE's labels; any asks for nothing but `nvidia.com/gpu`."""
    pull_secret: ObjectName | None = None
    """With which the nodes pull the image."""
    context: Context | None = None
    """Of kubeconfig; None: the current one."""
