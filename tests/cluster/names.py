"""Names of pods, as a cluster's DNS gives them: HOST.SERVICE.NAMESPACE.svc.cluster.local.

JobSet's pods find each other through a service without an address of its own. Its EndpointSlices
hold the host name and the address of each pod.
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterator
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

Slices = Callable[[str, str], list[dict[str, Any]]]
"""Returns the EndpointSlices of a namespace and a service."""


def addresses(name: str, slices: Slices) -> Iterator[str]:
    """Yield the addresses of a pod's name, or of all pods of a service's name."""
    *host, service, namespace, svc, _cluster, _local = name.rstrip(".").split(".")
    if svc != "svc":
        return
    for part in slices(namespace, service):
        for endpoint in part.get("endpoints") or ():
            if not host or endpoint.get("hostname") == ".".join(host):
                yield from endpoint["addresses"]


def answer(question: bytes, slices: Slices) -> bytes:
    """Return the answer to a question about addresses. A name that is not there does not exist."""
    query = dns.message.from_wire(question)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.flags |= dns.flags.AA
    asked = query.question[0]
    name = asked.name.to_text().lower()
    found = list(addresses(name, slices)) if name.endswith(".svc.cluster.local.") else []
    if not found:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif asked.rdtype == dns.rdatatype.A:
        reply.answer.append(dns.rrset.from_text(asked.name, 1, "IN", "A", *found))
    return reply.to_wire()


def server(address: str, slices: Slices) -> socketserver.ThreadingUDPServer:
    """Return a DNS server on port 53 of an address; it answers from `serve_forever` on."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, connection = self.request
            connection.sendto(answer(data, slices), self.client_address)

    return socketserver.ThreadingUDPServer((address, 53), Handler)
