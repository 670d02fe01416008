"""Tells a process of a cluster where the others are, in the variables that its framework reads.

The services describe the cluster in TF_CONFIG, Vertex AI also in CLUSTER_SPEC. The start hook asks
this module in each process, before the program's first line. What names each variable's value is
the framework's (`rendezvous` in builder/facts/frameworks.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

FILE = "rendezvous.json"
"""The framework's variables, beside this module."""
_ORDER = ("chief", "master", "workerpool0", "worker", "workerpool1")
"""The roles that train, the first process's first. The others are no part of the cluster."""


def variables(wanted: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process lacks; {} for a job of one process.

    What is set already stays, because torchrun sets the same variables for those that it starts.
    """
    text = environment.get("TF_CONFIG") or environment.get("CLUSTER_SPEC") or "{}"
    config = json.loads(text)
    hosts = config.get("cluster", {})
    members = [(role, index) for role in _ORDER for index in range(len(hosts.get(role, ())))]
    task = config.get("task", {})
    me = (task.get("type"), int(task.get("index", 0)))
    if len(members) < 2 or me not in members:
        return {}
    host, _, port = hosts[members[0][0]][0].rpartition(":")
    values = {"host": host, "port": port, "rank": members.index(me), "count": len(members)}
    return {
        name: value.format(**values) for name, value in wanted.items() if name not in environment
    }
