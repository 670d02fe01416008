"""Does the image's own ld.so find what its frameworks need? Each framework has a probe that asks it
in a container (builder/frameworks/*/probes/loader.py). Our own images are held to their locks; an
image that anybody made has none, so no version is compared there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from builder.core.events import OnEvent
from builder.engine.containers import ContainerEngine
from builder.facts import frameworks
from builder.facts.frameworks import Framework
from builder.prove.image import Image
from builder.prove.judge import Run
from builder.prove.receipts import Defect, Finding
from builder.prove.session import Sandbox
from builder.prove.smoke import sandbox
from builder.prove.suite import probed

SITE: Final = re.compile(r"^(?P<prefix>.*)/lib/python(?P<python>3[\d.]*)/(site|dist)-packages/")
_USUAL: Final = re.compile(r"more than once|ld\.so\.cache alone|XLA finds no (ptxas|nvvm)")
"""What a program that uses the GPU often lives with."""
_DRIVER: Final = re.compile(r"\ba libcuda\b")
"""Whether the machine's own comes first, nobody sees where there is none: `loader` judges it."""


def interpreters(module: str) -> list[str]:
    """Return where the Python may lie that imports a module of this path, the likeliest first."""
    site = SITE.match(module)
    prefix, version = (site["prefix"], site["python"]) if site else ("/usr", "3")
    own = [f"{prefix}/bin/python{version}", f"{prefix}/bin/python3"]
    return [*own, f"/usr/local/bin/python{version}", f"/usr/bin/python{version}"]


def ask(made: Sandbox, framework: str, request: Mapping[str, Any], python: str = "") -> Run:
    """Ask a framework's probe in a container. python: as `Sandbox.probe` takes it."""
    imports = ("builder.frameworks.libraries", *frameworks.of(framework).loader_imports)
    probe = f"builder.frameworks.{framework}.probes.loader"
    return made.probe(probe, request, imports, python=python)


def ask_all(engine: ContainerEngine, image: Image, name: str, on_event: OnEvent) -> dict[str, Run]:
    """Ask the frameworks of an image in the engine that is judged for a GPU; return what the probe
    of each answered, by its name. Raises OutsideError."""
    asked = [each for each in image.frameworks if image.gpu and each.name in frameworks.OWN]
    if not asked or image.gpu is None:
        return {}
    request = {
        **{"accelerator": "gpu", "capability": str(image.gpu.capability), "strict": False},
        **{"release": "", "cuda": "", "cudnn": "", "locked": {}},
    }
    image_id, ledger = image.content.image_id, image.started.ledger if image.started else None
    with sandbox(engine, image_id, name, "ask the loader of", on_event, ledger) as made:
        return {each.name: ask(made, each.name, request, _python(image, each)) for each in asked}


def judge(image: Image) -> tuple[list[Defect], list[str]]:
    """Return what the probes of an image found, and what they could not ask."""
    found: list[list[Defect]] = []
    unanswered: list[str] = []
    for name, run in image.probed.items():
        try:
            defects, seen = probed(run)
        except (TypeError, ValueError):  # an image may print what it likes
            defects, seen = [Defect("its answer is none")], {"tail": ()}
        if "tail" in seen:
            title = frameworks.of(name).title
            unanswered.append(f"what {title} itself finds: {defects[0].message}")
            continue
        found.append([_of_others(each) for each in defects if not _DRIVER.search(each.message)])
    works = any(all(isinstance(defect, Finding) for defect in each) for each in found)
    every = [defect for each in found for defect in each]
    return [Finding(each.message, each.fix) if works else each for each in every], unanswered


def _of_others(defect: Defect) -> Defect:
    """Return what a probe found, in words for an image that has no lock."""
    fix = re.sub(",? as locked", "", defect.fix).replace("what the lock has", "what it requires")
    kind = Finding if _USUAL.search(defect.message) else Defect
    return kind(defect.message, re.sub(r"\block\b", "install", fix))


def _python(image: Image, framework: Framework) -> str:
    """Return the Python that imports a framework, "" where it does not lie beside it."""
    paths = (library.path for library in image.content.libraries)
    own = (path for path in paths if image.is_module(path, framework) and SITE.match(path))
    places = (place for path in own for place in interpreters(path))
    return next((place for place in places if image.tree.resolve(place) in image.tree.files), "")
