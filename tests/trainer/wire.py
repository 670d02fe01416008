"""A slow wire between two processes of a cluster: what one says comes late, or never if it ends."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

LATE = 0.2
"""Seconds that a word needs."""


@contextlib.contextmanager
def slow(first: dict[str, str], second: dict[str, str]) -> Iterator[None]:
    """Let the first process, by its environment, hear the second one, a worker, LATE seconds late.

    What is on its way when the second one ends is lost, as with a connection that is reset.
    """
    config = json.loads(first["TF_CONFIG"])
    number = json.loads(second["TF_CONFIG"])["task"]["index"]
    host, port = config["cluster"]["worker"][number].split(":")

    async def serve(near: asyncio.StreamReader, caller: asyncio.StreamWriter) -> None:
        try:
            far, other = await asyncio.open_connection(host, int(port))
        except OSError:
            caller.transport.abort()
            return
        await asyncio.gather(carry(near, other, 0), carry(far, caller, LATE))

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: float
    ) -> None:
        with contextlib.suppress(OSError):
            while words := await reader.read(1 << 16):
                asyncio.get_running_loop().call_later(late, writer.write, words)
        writer.transport.abort()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, host, 0))
    config["cluster"]["worker"][number] = f"{host}:{server.sockets[0].getsockname()[1]}"
    first["TF_CONFIG"] = json.dumps(config)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
