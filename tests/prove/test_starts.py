"""What an image of any other program has to show at its start, and what its container gets."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from builder import contract
from builder.prove import receipts, suites
from builder.prove.checks import start, starts
from builder.prove.image import Image, Started
from builder.prove.judge import Run
from builder.prove.receipts import CheckResult, Receipt
from builder.prove.session import Limits, Sandbox
from builder.reading.images import ImageContent

BEGIN = "Traceback (most recent call last):"
RUNPY = '  File "<frozen runpy>", line 88, in _run_code'
MODULE = '  File "/app/train.py", line 3, in <module>'
MAIN = '  File "/app/train.py", line 9, in main'
LIBRARY = '  File "/opt/venv/lib/python3.11/site-packages/numpy/core.py", line 7, in at'
LACKS = "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'"


def asked(run: Run, *smoke: str) -> tuple[list[str], dict[str, Any], list[Any]]:
    """What the check says of an image that does this: defects, what was seen, what was started."""
    started = list[Any]()

    def start(arguments: Any, seconds: float, **_: object) -> Run:
        started.append((list(arguments), seconds))
        return run

    subject = SimpleNamespace(spec=SimpleNamespace(smoke=smoke))
    session: Any = SimpleNamespace(start=start, subject=subject, limits=Limits())
    defects, seen = starts.run(session)
    return [defect.message for defect in defects], dict(seen), started


@pytest.mark.parametrize(
    ("code", "tail", "ended"),
    [
        (0, ("usage: train.py DATA",), None),
        (2, ("usage: train.py DATA", "error: unknown --help"), "error: unknown --help"),
        (1, ("Try --helpfull to get a list of all flags.",), "Try --helpfull to get a list of all"),
        (1, (BEGIN, RUNPY, MODULE, "    main()", MAIN, LACKS), LACKS),
        (1, (BEGIN, MODULE, MAIN, LIBRARY, "    open()", "    ^^^^^^", LACKS), LACKS),
        (1, (BEGIN, MODULE, "NameError: a", "", BEGIN, MODULE, MAIN, "KeyError: 'b'"), "KeyError"),
        (1, ("[rank0]: " + BEGIN, "[rank0]: " + MAIN, "[rank0]: OSError: no disk"), "OSError: no"),
        (1, (MODULE, "    main()", MAIN, *["    x = 1", LIBRARY] * 30, LACKS), LACKS),  # cut off
    ],
)
def test_a_program_that_lacks_its_data_is_no_defect_and_not_proven(
    code: int, tail: tuple[str, ...], ended: str | None
) -> None:
    defects, seen, started = asked(Run(code, 1.0, tail=tail))
    assert (defects, started) == ([], [(["--help"], starts.SECONDS)])
    assert ("ended" in seen) is (ended is not None)
    assert seen.get("ended", "").startswith(f"ended with {code}: {ended}" if ended else "")
    receipt = receipt_of(seen)
    assert receipt.verdict == (f"started, then {seen['ended']}" if ended else "proven on CPU")
    assert any("smoke: [arguments]" in line for line in suites.beside(receipt)) is bool(ended)


def receipt_of(seen: dict[str, Any]) -> Receipt:
    """A receipt of the suite `program` whose check `starts` has seen this."""
    check = CheckResult(name="starts", version=3, passed=True, seconds=1.0, seen=seen)
    names = {"target": "cpu", "accelerator": "CPU", "reference": "training:cpu", "inputs": ""}
    return receipts.of("program", [check], image_id=f"sha256:{'0' * 64}", **names)


NUMPY = "AttributeError: module 'numpy' has no attribute 'float'"


@pytest.mark.parametrize(
    ("code", "tail", "message"),
    [
        (3, (), "ends before it says why: exit code 3; it said last: nothing"),
        (127, ('exec: "train": not found; see --help',), "cannot be executed: exit code 127"),
        (1, ("python: No module named train",), "does not start: python: No module named train"),
        (
            1,
            (BEGIN, RUNPY, MODULE, "ModuleNotFoundError: No module named 'pandas'"),
            "does not start: ModuleNotFoundError: No module named 'pandas' (train.py:3)",
        ),
        (
            1,
            (BEGIN, RUNPY, MODULE, "    RATE = np.float(0.1)", "    ^^^^", LIBRARY, NUMPY),
            f"fails while its modules load: {NUMPY} (train.py:3)",
        ),
        (1, (BEGIN, MODULE, LACKS), f"fails while its modules load: {LACKS} (train.py:3)"),
        (1, (BEGIN, MODULE, MAIN, "NameError: x"), "fails: NameError: x (train.py:9)"),
        (1, (BEGIN, MAIN, LIBRARY, "TypeError: no"), "fails: TypeError: no (train.py:9)"),
        (
            1,
            (BEGIN, MODULE, '  File "/app/net.py", line 2', "    x = = 1", "SyntaxError: invalid"),
            "does not start: SyntaxError: invalid (net.py:2)",
        ),
        (2, ("python: can't open file '/app/x.py'",), "does not start: python: can't open file"),
        *(
            (1, (BEGIN, MODULE, MAIN, f"OSError: {lacks}"), f"does not start: OSError: {lacks}")
            for lacks in (
                "/x/_torchtext.so: undefined symbol: _ZN3c104ivalue",
                "Could not load this library: /x/libtorchaudio.so",
                "libcudart.so.12: cannot open shared object file: No",
            )
        ),
    ],
)
def test_a_program_that_cannot_run_is_refused(
    code: int, tail: tuple[str, ...], message: str
) -> None:
    (defect,), _, _ = asked(Run(code, 1.0, tail=tail))
    assert defect.startswith(f"the program {message}")


def test_a_program_that_begins_to_train_is_stopped_and_proven() -> None:
    defects, seen, _ = asked(Run(137, 60.0, timed_out=True))
    assert (defects, receipt_of(seen).verdict) == ([], "proven on CPU")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (Run(1, 1.0, tail=(BEGIN, MODULE, MAIN, LACKS)), f"failed with exit code 1: {LACKS}"),
        (Run(2, 1.0, tail=("usage: train.py",)), "failed with exit code 2: usage: train.py"),
        (Run(137, 900.0, timed_out=True), "was not done after 900 s; it said last: nothing"),
    ],
)
def test_the_tiny_run_of_image_yaml_has_to_end_with_0(run: Any, says: str) -> None:
    given = ("--epochs=1", "--data=tiny")
    defects, seen, started = asked(Run(0, 1.0), *given)
    assert (defects, started) == ([], [(list(given), Limits().training_seconds)])
    assert seen["answered"] == "--epochs=1 --data=tiny"
    assert receipt_of(seen).verdict == "proven on CPU"
    assert asked(run, *given)[0] == [f"the run with --epochs=1 --data=tiny {says}"]


def test_a_container_is_told_that_the_cpu_is_wanted() -> None:
    """So an image that expects a GPU is proven where there is none."""
    client, image = MagicMock(), SimpleNamespace(id="sha256:1", attrs={})
    with Sandbox(client, image).container(["train"], {"A": "b"}):
        environment = client.containers.create.call_args.kwargs["environment"]
    assert (environment["A"], environment[contract.ACCELERATOR]) == ("b", contract.CPU)


@pytest.mark.parametrize(
    ("line", "is_missing"),
    [
        ("OSError: /x/_torchtext.so: undefined symbol: _ZN3c104ivalue", True),
        ("OSError: Could not load this library: /x/libtorchaudio.so", True),
        ("OSError: libcudart.so.12: cannot open shared object file: No such file", True),
        ("python: error while loading shared libraries: libpython3.11.so.1.0: cannot open", True),
        ("python: can't open file '/app/x.py': [Errno 2] No such file or directory", True),
        ("sh: can't open '/no.sh': No such file or directory", True),
        ("/bin/sh: 0: cannot open /no.sh: No such file", True),
        ("WARNING: undefined symbol: x", False),
        ("can't open file 'data.csv'", False),
        ("OSError: [Errno 28] No space left on device", False),
    ],
)
def test_a_line_says_that_a_part_of_the_image_is_missing(line: str, is_missing: bool) -> None:
    """As the check `start` reads it where the image's own command failed."""
    content = ImageContent((), image_id="sha256:1")
    image = Image(content, started=Started(Run(2, 1.0, tail=(line,))))
    assert start.CHECK.judge(image).status == ("refused" if is_missing else "not there")
