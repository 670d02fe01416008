"""The suites of checks that an image goes through, and which one an image needs.

Which suite it is follows from the image's own labels, which are part of its digest, and never from
the receipt: whoever writes a receipt cannot choose the weaker suite. An image without the label
LABEL has our trainer, or a program that keeps to the same contract. The factory writes the label
into images of any other program (builder/pipeline/package.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from builder.config.image_yaml import ImageSpec
from builder.core.errors import CheckFailed
from builder.facts import frameworks
from builder.image.plan import APP
from builder.prove import own_loader, receipts
from builder.prove.checks import (
    certificates,
    combinations,
    contents,
    device_code,
    driver,
    entry_point,
    environment,
    gpu,
    installed,
    machine,
    permissions,
    pth,
    secrets,
    shadows,
    size,
    start,
    starts,
    stopping,
    training,
)
from builder.prove.checks import compile as compiling
from builder.prove.checks import loader as linked
from builder.prove.image import NotThereError
from builder.prove.receipts import Receipt
from builder.prove.session import RECORDS, Session
from builder.prove.suite import Answer, Check, Suite, probed

LABEL: Final = "training-image-factory.suite"
"""The label of an image that names its suite; those with the trainer's have none."""

UNKNOWN_USER: Final = "12345"
"""A user without an account in any image, as platforms choose one."""

OF_ANY: Final = (
    device_code.CHECK,
    combinations.CHECK,
    environment.CHECK,
    machine.CHECK,
    driver.CHECK,
    permissions.CHECK,
    shadows.CHECK,
)
"""The checks of every suite."""

IMAGE: Final = Suite(
    "image",
    (
        *OF_ANY,
        *(linked.CHECK, installed.CHECK, certificates.CHECK, entry_point.CHECK),
        *(secrets.CHECK, pth.CHECK, start.CHECK, compiling.CHECK),
    ),
)
"""The suite of an image that anybody made, the least of all. No label names it, so its receipt
counts only where somebody asks for it (`builder verify --suite image`)."""

ON_GPU: Final = Suite(IMAGE.name, (*IMAGE.checks, gpu.CHECK))
"""The same suite of an image whose program has run on a GPU, too (`builder prove --on-gpu`). A
receipt of it is one of IMAGE, and holds more."""


def loader(name: str, version: int) -> Check:
    """Return the check whether a framework finds its libraries, by its probe, which is told what
    the image was made from. version: raise it where the probe begins to ask for more."""

    def run(session: Session) -> Answer:
        spec, stack = session.subject.spec, session.subject.stack
        request = {
            "accelerator": stack.accelerator.kind,
            "release": stack.release,
            "cuda": stack.cuda,
            "cudnn": stack.cudnn,
            "capability": stack.compute_capability,
            "locked": dict(session.subject.packages),
            "strict": spec.has_own_base,
        }
        return probed(own_loader.ask(session, name, request))

    return Check("loader", version, run)


def compiler(name: str) -> Check:
    """Return the check whether a framework that compiles while a job runs can do so in the image,
    for its GPU, as whatever user the job has. Its probe is the framework's."""

    def run(session: Session) -> Answer:
        request = {"capability": session.subject.stack.compute_capability}
        probe, shared = f"builder.frameworks.{name}.probes.compiler", "builder.frameworks.libraries"
        return probed(session.probe(probe, request, imports=(shared,), user=UNKNOWN_USER))

    return Check("compiler", 1, run, frozenset({"gpu"}))


def outputs(name: str) -> Check:
    """Return the check whether somebody can use what a training run wrote, by the probe of a
    framework. Without a run that ended well it has nothing to look at."""

    def run(session: Session) -> Answer:
        if session.finished_job is None:
            raise NotThereError("no training run ended well")
        request = {"records": RECORDS, "job": session.finished_job}
        probe, shared = f"builder.frameworks.{name}.probes.outputs", "builder.frameworks.written"
        return probed(session.probe(probe, request, imports=(shared,)))

    return Check("outputs", 1, run)


def imports(proven_elsewhere: Sequence[str]) -> Check:
    """Return the check whether every module that a program imports as it starts can be imported.

    proven_elsewhere: modules that another check loads; these are only found, for they load slowly.
    """

    def run(session: Session) -> Answer:
        module = session.subject.spec.program.module
        request = {"folder": APP, "module": module, "proven_elsewhere": list(proven_elsewhere)}
        return probed(session.probe("builder.prove.probes.imports", request))

    return Check("imports", 2, run)


@cache
def both(
    name: str, modules: tuple[str, ...], version: int, compiles: bool = False
) -> Mapping[str, Suite]:
    """Return the suites of one of our frameworks, by `suite` of image.yaml. modules: those that its
    check `loader` loads; version: of that check. compiles: whether it has a `compiler`. A framework
    with a hook that compiles a program's step is asked for that, last."""
    check, more = loader(name, version), (compiler(name),) if compiles else ()
    last = (compiling.CHECK,) if compiling.hook(name) else ()
    return {
        receipts.TRAINER: trainer(name, check, outputs(name), more, last),
        receipts.PROGRAM: program(name, check, modules, more, last),
    }


Checks = tuple[Check, ...]


def trainer(
    name: str, loader: Check, outputs: Check, more: Checks = (), last: Checks = ()
) -> Suite:
    """Return the suite of an image whose program trains, checkpoints and resumes
    (builder/contract.py).

    name: the framework's. loader: asks whether it finds its libraries. outputs: asks whether what
    it wrote can be used. more, last: what else is asked, beside the loader and at the end.
    """
    checks = (
        *(size.CHECK, *OF_ANY, loader, *more, contents.CHECK),
        *(training.CHECK, outputs, stopping.CHECK, *last),
    )
    return Suite(_named(name, receipts.TRAINER), checks)


def program(
    name: str, loader: Check, modules: Sequence[str], more: Checks = (), last: Checks = ()
) -> Suite:
    """Return the suite of an image with any other program. Its options are unknown, so nothing can
    be trained. modules: those that `loader` loads; more, last: as for `trainer`."""
    checks = (*OF_ANY, loader, *more, contents.CHECK, imports(modules), starts.CHECK, *last)
    return Suite(_named(name, receipts.PROGRAM), checks)


def beside(receipt: Receipt) -> Iterator[str]:
    """Yield what a person should read beside the names of the checks: what the program needs on its
    accelerator, and what an image with this receipt could prove beside that."""
    yield from (check.note for check in receipt.checks if check.name == compiling.NAME)
    if not receipt.suite.endswith(receipts.PROGRAM):
        return
    if receipt.ended:
        yield "not seen: a run that ends well (name a tiny one in image.yaml: smoke: [arguments])"
    else:
        yield "not asked: steps, checkpoints, a saved result (suite: trainer, docs/your-program.md)"


def _named(framework: str, suite: str) -> str:
    return suite if framework == frameworks.DEFAULT else f"{framework}-{suite}"


def of_spec(spec: ImageSpec) -> Suite:
    return frameworks.of(spec.framework).suites()[spec.suite]


def of_image(labels: Mapping[str, str]) -> Suite:
    """Return the suite that an image with these labels needs.

    Raises CheckFailed for a label that names no suite, or no framework.
    """
    name = labels.get(LABEL, receipts.TRAINER)
    try:
        return frameworks.of_image(labels).suites()[name]
    except KeyError as error:
        label, what = LABEL, "suite of checks"
        if not frameworks.is_known(labels.get(frameworks.LABEL, frameworks.DEFAULT)):
            label, what = frameworks.LABEL, "framework"
        raise CheckFailed(
            f"the image's label {label} says {error}, and there is no such {what}",
            "build the image again with this factory, or verify it with the one that made it",
        ) from None
