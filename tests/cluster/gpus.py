"""A device plugin for GPUs that are not there: it mounts a driver's folder, as GKE's does.

    cd NODE/kubelet/device-plugins; python -m tests.cluster.gpus DRIVER COUNT

It registers with the kubelet whose socket lies in the working folder, and ends with its standard
input. DRIVER has the libraries of a stand-in. The messages are few and small, so they are written
here by hand. Source: kubelet/pkg/apis/deviceplugin/v1beta1/api.proto.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

RESOURCE, SOCKET, API = "nvidia.com/gpu", "gpus.sock", "v1beta1"
LIBRARIES = "/usr/local/nvidia/lib64"
"""Where a pod finds the driver's libraries, as on GKE."""


def field(number: int, value: str | bytes) -> bytes:
    """Return a field of a message: a text, or a message. It is shorter than 128 KiB."""
    content = value.encode() if isinstance(value, str) else value
    size = len(content)
    length = [size & 0x7F | 0x80, size >> 7] if size > 0x7F else [size]
    return bytes([number << 3 | 2, *length]) + content


def containers(request: bytes) -> int:
    """Return for how many containers an AllocateRequest asks; each is a field of its own."""
    count = at = 0
    while at < len(request):
        size, at = request[at + 1], at + 2
        if size > 0x7F:
            size, at = size & 0x7F | request[at] << 7, at + 1
        count, at = count + 1, at + size
    return count


def serve(driver: str, count: int, stop: threading.Event) -> Any:
    """Serve the kubelet, and register with it. Returns the server."""
    devices = b"".join(field(1, field(1, f"gpu-{n}") + field(2, "Healthy")) for n in range(count))
    variables = {"LD_LIBRARY_PATH": LIBRARIES, "NVML_MACHINE": f"{LIBRARIES}/machine"}
    given = b"".join(field(1, field(1, name) + field(2, variables[name])) for name in variables)
    given += field(2, field(1, LIBRARIES) + field(2, driver))

    def watched(_request: bytes, _context: object) -> Iterator[bytes]:
        yield devices
        stop.wait()

    def allocated(request: bytes, _context: object) -> bytes:
        return field(1, given) * containers(request)

    def nothing(_request: bytes, _context: object) -> bytes:
        return b""

    answers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(nothing),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(watched),
        "Allocate": grpc.unary_unary_rpc_method_handler(allocated),
        "PreStartContainer": grpc.unary_unary_rpc_method_handler(nothing),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.method_handlers_generic_handler(f"{API}.DevicePlugin", answers)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{SOCKET}")
    server.start()
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel("unix:kubelet.sock", options) as kubelet:
        register = kubelet.unary_unary(f"/{API}.Registration/Register")
        register(field(1, API) + field(2, SOCKET) + field(3, RESOURCE), timeout=30)
    return server


def main(driver: str, count: str) -> None:
    stop = threading.Event()
    server = serve(driver, int(count), stop)
    sys.stdin.read()
    stop.set()
    server.stop(1).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
