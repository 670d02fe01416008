"""The factory's and the trainer's words are the same, although neither imports the other."""

import ast
import math
from pathlib import Path

import pytest
import yaml

from builder import contract
from builder.contract import TrainerEvent, options, parse, words
from builder.facts.cuda import OldestDriver
from builder.jobs import machines
from trainer import config, event_lines, guard, task

TRAINER = Path(task.__file__).parent


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ('{"event": "step", "step": 3, "loss": 0.5}', TrainerEvent("step", 3, 0.5)),
        ('{"event": "step", "step": 3.0}', TrainerEvent("step", 3)),
        ('{"event": "step", "step": 3.5, "loss": true}', TrainerEvent("step")),
        ('{"event": "step", "step": 1e999}', TrainerEvent("step")),
        ('{"event": "evaluated", "step": 3, "loss": 0.5, "accuracy": 0.75}',
         TrainerEvent("evaluated", 3, 0.5, accuracy=0.75)),
        ('{"message": "hello"}', None),
        ('{"event": 3}', None),
        ("{not json", None),
        ("[1]", None),
    ],
)  # fmt: skip
def test_what_a_line_reports(line: str, event: TrainerEvent | None) -> None:
    assert parse(line) == event


def test_losses_words_and_options_of_a_line() -> None:
    for loss in ("nan", "what"):
        event = contract.event({"event": "step", "step": 3, "loss": loss})
        assert event is not None and event.loss is not None and math.isnan(event.loss)
    assert words('{"message": "hello", "event": "start"}') == "hello"
    assert words('{"event": "start"}') == '{"event": "start"}'
    assert words(" plain text \n") == "plain text"
    given = ["train", "--steps=10", "--batch", "4", "--steps", "20", "--xla", "--turn=", "--last"]
    found = {"--steps": "20", "--batch": "4", "--xla": "", "--turn": "", "--last": ""}
    assert options(given) == found


# The trainer keeps to it ------------------------------------------------------------------------


def test_the_trainer_takes_the_options() -> None:
    given = [f"{contract.RECORDS}=/records", f"{contract.JOB_DIR}=/job", f"{contract.STEPS}=7"]
    given += [f"{contract.BATCH}=5", f"{contract.CHECKPOINT_EVERY}=3"]
    found = config.parse(given, {})
    assert (found.records, found.job_dir, found.steps) == ("/records", "/job", 7)
    assert (found.batch_size, found.checkpoint_every) == (5, 3)
    given[3] = f"{contract.BATCH_SIZE}=6"
    assert config.parse(given, {}).batch_size == 6


def test_the_trainer_takes_the_arguments_of_every_example() -> None:
    paths = sorted((TRAINER.parent / "jobs").glob("*.yaml"))
    assert paths
    for path in paths:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))["arguments"]
        config.parse(["--job-dir=j", *(f"--{name}={value}" for name, value in given.items())], {})


def test_the_trainer_reads_what_a_place_gives_to_it() -> None:
    assert (contract.ACCELERATOR, contract.CPU) == (guard.VARIABLE, guard.NONE)
    # read, not imported: the module begins with TensorFlow
    provenance = (TRAINER / "job/provenance.py").read_text(encoding="utf-8")
    assert contract.ANY_GPU == guard.ANY
    assert f'\nIMAGE = "{contract.IMAGE}"\n' in provenance
    given = ["--records=r", "--job-dir=j"]
    for value, meant in (
        (contract.accelerator("V100", 2, capability="7.0"), ("V100", 2, "7.0", "", "")),
        (contract.accelerator("L4", 1, cuda="12", driver="525"), ("L4", 1, "", "12", "525")),
        (contract.accelerator(contract.ANY_GPU, 3), ("GPU", 3, "", "", "")),
        (contract.accelerator("TPU-v3"), ("TPU-v3", 1, "", "", "")),
        (
            contract.accelerator("TPU-v5e", 4, topology="4x4"),
            ("TPU-v5e", 4, "", "", "", "4x4"),
        ),
    ):
        found = config.parse(given, {contract.ACCELERATOR: value}).accelerator
        assert guard.expected(found, "") == guard.Expected(*meant, paid=":" in value)
    cpu = config.parse(given, {contract.ACCELERATOR: contract.CPU}).accelerator
    assert guard.expected(cpu, "") is None


def test_every_accelerator_on_offer_can_be_read_by_the_trainer() -> None:
    for placement in machines.combinations():
        for value in placement.promise(OldestDriver("555", "12.5")).values():
            found = guard.expected(value, "")
            assert (found is None) == (placement.device is None)
            if found is None or placement.device is None:
                continue
            assert found.tpu == (placement.device.kind == "tpu")
            chips = placement.chips if found.tpu else placement.count
            assert (found.count, found.topology) == (chips, placement.topology or "")


def test_the_trainer_reports_the_events() -> None:
    names: dict[str, set[str]] = {}
    for path in TRAINER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "say":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    given = {keyword.arg or "" for keyword in node.keywords}
                    names.setdefault(str(first.value), set()).update(given)
    for name in (contract.STEP, contract.CHECKPOINT, contract.RESUMED, contract.EVALUATED):
        assert "step" in names[name], f'the trainer reports no event "{name}" with its step'
    assert {"tag", "value", "step"} <= names[contract.TRIAL]


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"event": "trial", "tag": "accuracy", "value": 0.5, "loss": 1.0}, 0.5),
        ({"event": "trial", "tag": "loss", "value": 0.5, "accuracy": 1.0}, None),
        ({"event": "evaluated", "accuracy": "0.5"}, 0.5),
        ({"event": "evaluated", "accuracy": "nan"}, None),
        ({"event": "evaluated", "accuracy": [1]}, None),
        ({"accuracy": 0.5}, None),
    ],
)
def test_the_metric_of_a_line(fields: dict[str, object], value: float | None) -> None:
    assert contract.metric(fields, "accuracy") == value


def test_an_event_of_the_trainer_comes_back_as_it_was() -> None:
    numbers = {"step": 50, "steps": 200, "loss": 0.5, "accuracy": 0.25, "eta_seconds": 3725.0,
               "gpu_percent": 87.5, "gpu_memory_bytes": 3 << 30}  # fmt: skip
    line = event_lines.line("step", "step 50 of 200", examples_per_second=1234.5, **numbers)
    expected = TrainerEvent("step", message="step 50 of 200", examples_per_second=1234.5, **numbers)  # type: ignore[arg-type]
    assert parse(line) == expected
    told = parse(event_lines.line("step", "no number", "WARNING", step=1, loss=math.inf))
    assert told == TrainerEvent("step", 1, math.inf, "no number", "WARNING")


def test_the_exit_codes_are_the_trainers() -> None:
    ours = (contract.OK, contract.FAULT, contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE)
    assert ours == (
        event_lines.OK,
        event_lines.FAULT,
        event_lines.USAGE,
        event_lines.OUTSIDE,
        event_lines.NOT_FINITE,
    )
    assert contract.RESTART == task.RESTART
