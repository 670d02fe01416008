"""The image's own loader, asked by the probes of its frameworks: what an answer counts for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from builder.frameworks import libraries
from builder.prove import own_loader
from builder.prove.checks import loader
from builder.prove.image import Image
from builder.prove.judge import Run
from builder.prove.receipts import Defect, Finding
from tests.prove.test_loader import image

LIBRARY = {"message": "libcufft.so.11 does not open: it is cut off", "fix": "install it as locked"}
TWICE = {"message": "libcufft.so.11 is on the loader's path more than once: it takes", "fix": "x"}
STUB = {"message": "a libcuda is on the loader's path: /usr/local/cuda/compat", "fix": "remove it"}


def answered(*problems: Any) -> Run:
    return Run(0, 1.0, answer={"problems": list(problems), "seen": {}})


def said(**probed: Run) -> tuple[list[str], list[str], str]:
    """Refusals, findings and what was not followed of an image that the layers find no fault in."""
    defects, seen = loader.run(replace(image("torch"), probed=probed))
    findings = [each.message for each in defects if isinstance(each, Finding)]
    refusals = [each.message for each in defects if type(each) is Defect]
    return refusals, findings, seen.get("not_followed", "")


def test_what_the_images_own_loader_does_not_open_refuses_it() -> None:
    assert said(torch=answered()) == ([], [], "")
    assert said(torch=answered(LIBRARY)) == ([LIBRARY["message"]], [], "")
    assert said(torch=answered(TWICE, STUB)) == ([], [TWICE["message"]], "")
    assert said(torch=answered(), tensorflow=answered(LIBRARY)) == ([], [LIBRARY["message"]], "")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (Run(127, 0.1, tail=("exec: python3: not found",)), "python3: not found"),
        (Run(137, 9.0, out_of_memory=True), "memory"),
        (answered({"message": 1}), "its answer is none"),
        (Run(0, 1.0, answer={"problems": 3, "seen": {}}), "its answer is none"),
        (Run(0, 1.0, answer={"other": 3}), "the probe"),
    ],
)
def test_a_probe_without_an_answer_is_not_followed(run: Run, words: str) -> None:
    refusals, findings, not_followed = said(torch=run)
    assert (refusals, findings) == ([], [])
    assert not_followed.startswith("what PyTorch itself finds: ") and words in not_followed


def test_an_image_of_others_has_no_lock() -> None:
    fixes = {
        libraries.LOCKED: "install what it requires, and nothing beside it",
        "install nvidia-cufft-cu12 as locked": "install nvidia-cufft-cu12",
        "lock `tensorflow`, not `tensorflow-cpu`": "install `tensorflow`, not `tensorflow-cpu`",
    }
    for fix, instead in fixes.items():
        (defect,), _ = own_loader.judge(
            replace(image("torch"), probed={"torch": answered({"message": "m", "fix": fix})})
        )
        assert defect.fix == instead


def test_the_python_beside_a_framework_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for a GPU alone, with no version of a lock."""
    asked = list[Any]()

    class Sandbox:
        def probe(self, program: str, request: Any, imports: Any, python: str) -> Run:
            asked.append((program, request["capability"], request["locked"], python))
            return answered()

    @contextlib.contextmanager
    def opened(*_: object, **__: object) -> Iterator[Sandbox]:
        yield Sandbox()

    monkeypatch.setattr(own_loader, "sandbox", opened)
    engine: Any = SimpleNamespace(client=SimpleNamespace(images=SimpleNamespace(get=str)))
    probe = "builder.frameworks.torch.probes.loader"

    def ask(judged: Image) -> list[Any]:
        asked.clear()
        own_loader.ask_all(engine, judged, "it", lambda _: None)
        return list(asked)

    python, system = "/opt/venv/bin/python3.11", "/usr/bin/python3.11"
    for leads, asked_of in ((system, python), ("/gone", system)):
        judged = image("torch", links={python.removeprefix("/"): leads})
        assert ask(judged) == [(probe, "7.0", {}, asked_of)]
    assert ask(replace(judged, gpu=None)) == []
