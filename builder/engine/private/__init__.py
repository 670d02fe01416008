"""A Docker engine of our own, for a Debian machine that has none.

The engine consists of Debian's packages, unpacked in a folder. Nothing is installed system-wide,
and an engine that the machine may have is not touched. The private engine has its own socket, data
root, containerd, bridge and address range. It outlives the command that started it, until `stop`.

It needs root: mounts, namespaces and bridges are refused to others. One setting of the machine
changes, as with any Docker: packets are forwarded (net.ipv4.ip_forward).
"""

from builder.engine.private.instance import ENVIRONMENT, data_folder
from builder.engine.private.lifecycle import EngineStatus, remove, start, status, stop

__all__ = ["ENVIRONMENT", "EngineStatus", "data_folder", "remove", "start", "status", "stop"]
