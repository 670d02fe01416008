"""What runs pods: a script that says what a test wants, or containers on the engine."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

Object = dict[str, Any]


@dataclass
class Running:
    """A pod that runs. lines: time stamp and text. terminate: SIGTERM, then its grace."""

    lines: list[str] = field(default_factory=list)
    message: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def say(self, text: str) -> None:
        stamp = f"{time.time_ns():019d}"
        when = datetime.fromtimestamp(int(stamp[:10]), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        self.lines.append(f"{when}.{stamp[10:]}Z {text}")


class Kubelet(Protocol):
    """Runs one pod to its end, in the caller's thread: the exit code, and why (`Error` ...)."""

    def run(self, pod: Object, running: Running) -> tuple[int, str]: ...


def environment(pod: Object) -> dict[str, str]:
    """The variables of a pod's container, as the kubelet makes them: in the order of the list."""
    found: dict[str, str] = {}
    for one in pod["spec"]["containers"][0].get("env") or []:
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            name = re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)
            assert name is not None, path
            found[one["name"]] = pod["metadata"]["annotations"][name[1]]
        else:
            found[one["name"]] = expanded(one.get("value", ""), found)
    return found


def expanded(text: str, known: Mapping[str, str]) -> str:
    """What the kubelet makes of a text: third_party/forked/golang/expansion/expand.go."""

    def put(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", put, text)


@dataclass
class Script:
    """What a pod does: says lines, waits for an event or for its end, and ends with a code.
    message: what it wrote to its termination message; the cluster keeps the end, 4096 bytes."""

    lines: tuple[str, ...] = ("hello",)
    code: int = 0
    wait: threading.Event | None = None
    message: str = ""


@dataclass
class Scripted:
    """Pods that do what a function of theirs says. pods: all that ran, in order."""

    script: Callable[[Object], Script] = lambda pod: Script()
    pods: list[Object] = field(default_factory=list)

    def run(self, pod: Object, running: Running) -> tuple[int, str]:
        self.pods.append(pod)
        script = self.script(pod)
        for line in script.lines:
            running.say(line)
        running.message = script.message[-4096:]
        while script.wait is not None and not script.wait.wait(0.005):
            if running.stop.is_set():
                return 143, "Error"
        return script.code, "Completed" if script.code == 0 else "Error"


@dataclass
class Containers:
    """Pods as containers on the engine: host names, environment, rights and mounts of the pod.

    images: the reference that a pod names -> what the engine calls that image. One network stands
    for the cluster's: a pod is reached as HOSTNAME.SUBDOMAIN, as the headless service has it.
    binds: folders of this machine, for what would lie in a bucket. grace: seconds from SIGTERM to
    SIGKILL; 30 in a real cluster.
    """

    engine: Any
    images: Mapping[str, str]
    network: str
    labels: Mapping[str, str]
    binds: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10.0
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, pod: Object, running: Running) -> tuple[int, str]:
        client, spec = self.engine.client, pod["spec"]
        container = spec["containers"][0]
        known = environment(pod)
        host = f"{spec['hostname']}.{spec['subdomain']}"
        tmpfs = [
            mount["mountPath"]
            for mount in container.get("volumeMounts") or []
            for volume in spec["volumes"]
            if volume["name"] == mount["name"] and "emptyDir" in volume
        ]
        image = self.images[container["image"]]
        secure = container["securityContext"]
        if spec["securityContext"].get("runAsNonRoot"):
            user = client.images.get(image).attrs["Config"].get("User") or "0"
            if user.partition(":")[0] in ("0", "root"):
                return 1, "CreateContainerConfigError"
        command, args = container.get("command"), container.get("args")
        full = f"{host}.{pod['metadata']['namespace']}.svc.cluster.local"
        endpoint = client.api.create_endpoint_config(aliases=[host, full])
        made = client.containers.create(
            image,
            [expanded(one, known) for one in args] if args is not None else None,
            hostname=spec["hostname"],
            network=self.network,
            networking_config={self.network: endpoint},
            labels=dict(self.labels),
            environment=known,
            tmpfs=dict.fromkeys(tmpfs, "rw,exec,mode=1777"),
            read_only=secure.get("readOnlyRootFilesystem", False),
            cap_drop=(secure.get("capabilities") or {}).get("drop"),
            security_opt=["no-new-privileges"] if not secure["allowPrivilegeEscalation"] else [],
            volumes=[f"{here}:{there}" for there, here in self.binds.items()],
            **({"entrypoint": [expanded(one, known) for one in command]} if command else {}),
        )
        self.ids[pod["metadata"]["name"]] = made.id
        try:
            made.start()
            return self._followed(made, running)
        finally:
            with contextlib.suppress(Exception):
                made.remove(force=True)

    def _followed(self, made: Any, running: Running) -> tuple[int, str]:
        def lines() -> None:
            rest = b""
            for block in made.logs(stream=True, follow=True, timestamps=True):
                *whole, rest = (rest + block).split(b"\n")
                running.lines.extend(one.decode(errors="replace") for one in whole)

        reader = threading.Thread(target=lines, daemon=True)
        reader.start()
        kills: float | None = None
        while True:
            made.reload()
            if not made.attrs["State"]["Running"]:
                break
            if running.stop.is_set() and kills is None:
                kills = time.monotonic() + self.grace
                with contextlib.suppress(Exception):
                    made.kill("SIGTERM")
            elif kills is not None and time.monotonic() > kills:
                with contextlib.suppress(Exception):
                    made.kill("SIGKILL")
            time.sleep(0.05)
        reader.join(5)
        state = made.attrs["State"]
        code = int(state["ExitCode"])
        reason = "OOMKilled" if state.get("OOMKilled") else "Error" if code else "Completed"
        return code, reason
