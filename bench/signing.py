"""What signing adds to a push: all that is said of an image of the target `cpu` and of its base.

    python -m bench.signing

Read from the project's files, written, signed with a key file, and put into docker-registry: six
statements, and the two tags of cosign 2. The registry is on loopback, and then FAR seconds away.
Image and base are the smallest ones, and lie in the registry already: the bytes of layers are the
same with and without a key. Each push is a process of its own, so what only signing imports counts.
The medians of ROUNDS pushes with a key, and of as many without one, are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from bench import load
from builder.core.project import find_root
from builder.core.settings import Settings
from builder.core.trustsettings import TrustSettings
from builder.engine import Engine
from builder.pipeline import push, signing
from builder.registry import Manifest, Registry
from tests.emulators.registry_faults import FaultHandler, FaultProxy
from tests.emulators.web import answering
from tests.pipeline.pushing import REPOSITORY, Image
from tests.pipeline.test_signing import record
from tests.registry.server import registry
from tests.trust.signing import image, pair, receipt

ROUNDS = 9
FAR = 0.03
"""Seconds from a request to the registry's answer."""
ROOT = find_root(Path(__file__).parent)


class _FarHandler(FaultHandler):
    def _pass(self) -> None:
        time.sleep(FAR)
        super()._pass()

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _pass  # noqa: N815


@contextmanager
def far(host: str) -> Iterator[FaultProxy]:
    """The registry at `host`, FAR seconds away."""
    proxy = FaultProxy(host, _FarHandler)
    with answering(proxy):
        yield proxy


def one(host: str, tag: str, key: str) -> None:
    """Push the image of one round; print the seconds of the clock, and of this process's CPU."""
    made_by = record(ROOT)

    def on_engine(there: Registry, name: str) -> tuple[Manifest, Image]:
        found = there.manifest(REPOSITORY, name)
        assert found
        return found, Image(f"{host}/{REPOSITORY}:{name}", found.digest, found.config.digest)

    with Registry(host) as there:
        manifest, ours = on_engine(there, tag)
        _, base = on_engine(there, (made_by.base or "").rpartition(":")[2])
    where = Settings(registry=f"{host}/{REPOSITORY}", trust=TrustSettings(key=key or None))
    begun, used = time.perf_counter(), time.process_time()
    pushed = push.push(
        cast(Engine, None),  # all of it is there
        ours,
        receipt(manifest),
        where,
        ("v",),
        base=base,
        about=partial(signing.about, ROOT, made_by, "0.1.0"),
    )
    print(json.dumps([time.perf_counter() - begun, time.process_time() - used]))
    assert len(pushed.signed) == (6 if key else 0) and pushed.receipt, pushed


def median(host: str, straight: str, key: str) -> tuple[float, float]:
    """The seconds of a push. straight: the address of the registry itself."""
    base = (record(ROOT).base or "").rpartition(":")[2]
    found: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        tag = f"v{number}"
        with Registry(straight) as there:
            for name, text in ((tag, "image"), (base, "base")):
                image(there, f"{text} {time.time()}", name)
        call = [sys.executable, "-m", "bench.signing", host, tag, key]
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
        found.append(tuple(json.loads(done.stdout)))
    wall, cpu = (statistics.median(each) for each in zip(*found, strict=True))
    return wall, cpu


def main() -> None:
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-signing-") as folder,
        registry(Path(folder) / "registry") as server,
        far(server.host) as proxy,
    ):
        key = str(pair(Path(folder), "ours").path)
        for name, host in (("loopback", server.host), (f"{FAR * 1000:.0f} ms away", proxy.host)):
            (without, _), (signed, _) = (median(host, server.host, each) for each in ("", key))
            asked = f", {len(proxy.seen) / ROUNDS:.0f} requests together" if proxy.seen else ""
            print(
                f"{name}: a push takes {without:.2f} s, a signed one {signed:.2f} s:"
                f" {signed - without:.2f} s more{asked} ({load()})"
            )


if __name__ == "__main__":
    one(*sys.argv[1:]) if sys.argv[1:] else main()
