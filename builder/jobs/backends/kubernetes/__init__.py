"""Jobs in a cluster of Kubernetes: each is one JobSet.

client.py reaches the cluster, jobset.py and pod.py render a job, status.py reads what became of it,
waits.py what holds it up, logs.py what it prints; backend.py is the protocol; settings.py and
section.py say what a person may write, doctor.py what a job needs.
"""

from builder.core.backends import BackendKind, Flag
from builder.core.plugins import later

_HERE = "builder.jobs.backends.kubernetes"

BACKEND = BackendKind(
    name="kubernetes",
    title="Kubernetes",
    open=later(f"{_HERE}.backend:connect"),
    flags=(
        Flag("context", "of kubeconfig (default: the current)."),
        Flag("namespace", "default: the context's own."),
        Flag("queue", "a LocalQueue of Kueue.", sends=True),
        Flag("service_account", "a ServiceAccount of the namespace.", sends=True),
        Flag("nodes", "gke (default) selects nodes by GKE's labels; any: by GPUs.", sends=True),
        Flag("pull_secret", "a Secret with which nodes pull the image.", sends=True),
    ),
    settings=later(f"{_HERE}.settings:KubernetesSettings"),
    section=later(f"{_HERE}.section:KubernetesSection"),
    examine=later(f"{_HERE}.doctor:findings"),
    text=later("builder.core.yamlfile:dump"),
    trials=True,
)
