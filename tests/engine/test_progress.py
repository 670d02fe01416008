"""buildx's stream as events. tests/engine/data/*.jsonl were recorded from buildx 0.29 (BuildKit of
Docker 28.5); `registry.example` stands for the registry."""

from pathlib import Path

import pytest

from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted
from builder.engine.progress import Progress, events, short

DATA = Path(__file__).parent / "data"


def read(name: str) -> tuple[list[Event], Progress]:
    progress = Progress()
    seen: list[Event] = []
    for line in (DATA / name).read_text().splitlines():
        seen += progress.feed(line)
    return [*seen, *progress.finish()], progress


def test_a_build_from_its_first_step_to_its_export() -> None:
    seen, progress = read("built.jsonl")
    done = [event for event in seen if isinstance(event, StepDone)]
    assert [(event.name.split(" ")[0], event.cached, event.error) for event in done] == [
        ("[internal]", False, None),
        ("[1/2]", False, None),
        ("[2/2]", False, None),
        ("exporting", False, None),
        ("exporting", False, None),
        ("exporting", False, None),
    ]
    run = next(step for step in progress.steps if "RUN" in step.name)
    assert 0.3 < run.seconds < 1  # it slept for 0.3 s
    assert progress.failure is None


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.jsonl")))
def test_every_step_begins_once_and_ends_once(name: str) -> None:
    seen, progress = read(name)
    began = [event.name for event in seen if isinstance(event, StepStarted)]
    ended = [event.name for event in seen if isinstance(event, StepDone)]
    assert sorted(began) == sorted(ended) == sorted(step.name for step in progress.steps)
    assert len(set(began)) == len(began)
    assert list(events((DATA / name).read_text().splitlines())) == seen


def test_steps_from_the_cache_say_so() -> None:
    _, progress = read("cached.jsonl")
    assert [step.cached for step in progress.steps if step.name.startswith("[1/2]")] == [True]
    assert [step.cached for step in progress.steps if step.name.startswith("[2/2]")] == [True]
    assert not any(step.cached for step in progress.steps if step.name.startswith("exporting"))


def test_a_download_counts_bytes_over_all_layers() -> None:
    seen, _ = read("pulled.jsonl")
    pulled = [e for e in seen if isinstance(e, StepProgress) and "FROM" in e.name]
    assert (pulled[-1].current, pulled[-1].total) == (1093402, 1093402)


def test_a_context_counts_bytes_without_a_total() -> None:
    seen, _ = read("built.jsonl")
    sent = [e for e in seen if isinstance(e, StepProgress) and "build context" in e.name]
    assert (sent[-1].current, sent[-1].total) == (1997199, None)


def test_a_log_line_is_what_a_terminal_would_show() -> None:
    seen, _ = read("built.jsonl")
    assert [event.line for event in seen if isinstance(event, StepLog)] == ["loading 100%", "green"]


def test_phases_of_the_export_are_steps() -> None:
    _, progress = read("pushed.jsonl")
    assert [step.name for step in progress.steps][-3:] == [
        "exporting to image",
        "exporting to image: exporting layers",
        "exporting to image: pushing layers",
    ]


def test_a_linked_copy_is_one_step() -> None:
    _, progress = read("pushed.jsonl")
    assert [step.name for step in progress.steps if "COPY" in step.name] == ["[2/3] COPY app /app"]


def test_a_step_that_fails() -> None:
    seen, progress = read("failed.jsonl")
    failure = progress.failure
    assert failure is not None
    assert failure.error == progress.error == "exit code: 1"
    assert failure.line == 5
    assert failure.log[-1] == "ls: /nonexistent: No such file or directory"
    assert [e.error for e in seen if isinstance(e, StepDone) and e.error] == ["exit code: 1"]


def test_a_stream_that_is_cut_off_ends_every_step() -> None:
    progress = Progress()
    for line in (DATA / "built.jsonl").read_text().splitlines():
        progress.feed(line)
        if '"logs"' in line:
            break
    (ended,) = progress.finish()
    assert isinstance(ended, StepDone)
    assert ended.error == "the build ended"


@pytest.mark.parametrize("line", ["", "[]", "null", "not json {", '{"vertexes": null}', '{"x": 1}'])
def test_a_line_that_is_no_status_gives_no_event(line: str) -> None:
    assert Progress().feed(line) == ()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[stage-0 2/9] RUN --mount=type=cache,target=/c   --network=none pip  install", None),
        ("[base 1/4] COPY --link --chown=1:1 a b", "[base 1/4] COPY a b"),
    ],
)
def test_names_are_short(said: str, meant: str | None) -> None:
    assert short(said) == (meant or "[2/9] RUN pip install")
    assert len(short("RUN " + "x" * 500)) == 140
