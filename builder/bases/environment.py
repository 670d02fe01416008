"""The top layer of a base: the program's user and folder, the Python environment, the start hook.

The accounts are written here and not by useradd, which would leave today's date in /etc/shadow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from builder.bases import osroot
from builder.bases.layer import Compression, Layer, LayerPlan
from builder.bases.settings import APP
from builder.bases.tarball import LayerWriter, folders_above
from builder.bases.wheel import VENV, site_packages
from builder.core.files import hash_of, locked
from builder.devicecode.program import pruning_program

if TYPE_CHECKING:
    from builder.bases.store import Store
    from builder.spec.stack import Prune

RECIPE: Final = "1"
"""Part of the key. Raise it where this file makes other bytes from the same values."""
USER: Final = "trainer"
HOOK: Final = "training_image_gpu"
"""The module that says in one line when Python starts beside a GPU that the image was not pruned
for, whatever program it was started for."""


@dataclass(frozen=True)
class Environment:
    """What the layer says. python: "3.11". user: the number of the program's user and group."""

    python: str
    user: int
    keep: str | None
    """The compute capability whose device code stays; None where nothing is pruned."""

    @classmethod
    def of(cls, python: str, user: int, prune: Prune | None) -> Environment:
        return cls(python, user, prune.keep if prune else None)

    def plan(self, root: LayerPlan, compression: Compression) -> LayerPlan:
        """Its layer. root: the layer whose accounts it adds to."""
        texts = [text for pair in self._files().items() for text in pair]
        return LayerPlan(
            key=hash_of("environment", RECIPE, root.key, str(self.user), str(compression), *texts),
            name="environment",
            packages=(),
            download=0,
            why=f"the user {self.user}, {APP}, {VENV}"
            + (f", a word at the start beside a GPU other than {self.keep}" if self.keep else ""),
        )

    def _files(self) -> dict[str, str]:
        """Path -> text, without the accounts."""
        found = {
            f"{VENV}/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\n"
            f"version = {self.python}\nexecutable = /usr/bin/python{self.python}\n"
        }
        if self.keep:
            site = site_packages(self.python)
            found[f"{site}/{HOOK}.py"] = pruning_program()["announce.py"]
            found[f"{site}/{HOOK}.pth"] = f'import {HOOK}; {HOOK}.announce("{self.keep}")\n'
        return {path.lstrip("/"): text for path, text in found.items()}

    def write(self, writer: LayerWriter, passwd: str, group: str) -> None:
        """Write the layer's entries. passwd, group: the root's accounts."""
        home = f"/home/{USER}"
        files = self._files() | {
            "etc/passwd": f"{passwd}{USER}:x:{self.user}:{self.user}::{home}:/usr/sbin/nologin\n",
            "etc/group": f"{group}{USER}:x:{self.user}:\n",
        }
        links = {
            f"{VENV}/bin/python": "python3",
            f"{VENV}/bin/python3": "/usr/bin/python3",
            f"{VENV}/bin/python{self.python}": "python3",
            f"{VENV}/lib64": "lib",
        }
        links = {path.lstrip("/"): target for path, target in links.items()}
        own = home.lstrip("/")
        for name in sorted(
            {*files, *links, own, APP.lstrip("/"), *folders_above([*files, *links, own])}
        ):
            if name in files:
                writer.file(name, files[name].encode())
            elif name in links:
                writer.link(name, links[name])
            else:
                writer.folder(name, owner=(self.user, self.user) if name == own else (0, 0))


def make(
    one: Environment, store: Store, root: Layer, plan: LayerPlan, compression: Compression
) -> Layer:
    """The layer: from the store, else made. root: the OS root's, whose blob is in the store."""
    with locked(store.folder / "keys" / f"{plan.key}.lock"):
        if found := store.find(plan.key):
            return found
        passwd, group = osroot.accounts(store, root)
        with store.writing() as out:
            writer = LayerWriter(out, compression)
            one.write(writer, passwd, group)
            return store.keep(out, writer.close(plan.key))
