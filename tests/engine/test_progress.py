"""buildx's stream as events. tests/engine/data/*.jsonl were recorded from buildx 0.29 (BuildKit of
Docker 28.5); `registry.example` stands for the registry."""

from pathlib import Path

import pytest

from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted
from builder.engine.progress import Progress, short

DATA = Path(__file__).parent / "data"


def read(name: str) -> tuple[list[Event], Progress]:
    """Return the events of a recorded stream, and what read it."""
    progress = Progress()
    lines = (DATA / name).read_text().splitlines()
    events = [event for line in lines for event in progress.feed(line)]
    return [*events, *progress.finish()], progress


def done(events: list[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def test_a_build_from_its_first_step_to_its_export() -> None:
    events, progress = read("built.jsonl")
    assert [(event.name.split(" ")[0], event.cached, event.error) for event in done(events)] == [
        ("[internal]", False, None),
        ("[1/2]", False, None),
        ("[2/2]", False, None),
        ("exporting", False, None),
        ("exporting", False, None),
        ("exporting", False, None),
    ]
    (run,) = (event for event in done(events) if "RUN" in event.name)
    assert 0.3 < run.seconds < 1  # it slept for 0.3 s
    assert [event.line for event in events if isinstance(event, StepLog)] == [
        "loading 100%",  # what a terminal would show of a progress bar
        "green",
    ]
    sent = [e for e in events if isinstance(e, StepProgress) and "build context" in e.name]
    assert (sent[-1].current, sent[-1].total) == (1997199, None)
    assert progress.failure is None


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.jsonl")))
def test_every_step_begins_once_and_ends_once(name: str) -> None:
    events, _ = read(name)
    began = [event.name for event in events if isinstance(event, StepStarted)]
    assert sorted(began) == sorted(event.name for event in done(events))
    assert len(set(began)) == len(began)


def test_steps_from_the_cache_say_so() -> None:
    cached = {event.name[:5]: event.cached for event in done(read("cached.jsonl")[0])}
    assert (cached["[1/2]"], cached["[2/2]"], cached["expor"]) == (True, True, False)


def test_a_download_counts_bytes_over_all_layers() -> None:
    events, _ = read("pulled.jsonl")
    pulled = [e for e in events if isinstance(e, StepProgress) and "FROM" in e.name]
    assert (pulled[-1].current, pulled[-1].total) == (1093402, 1093402)


def test_a_linked_copy_is_one_step_and_each_phase_of_the_export_is_one() -> None:
    names = [event.name for event in done(read("pushed.jsonl")[0])]
    assert [name for name in names if "COPY" in name] == ["[2/3] COPY app /app"]
    assert {name for name in names if name.startswith("exporting")} == {
        "exporting to image",
        "exporting to image: exporting layers",
        "exporting to image: pushing layers",
    }


def test_a_step_that_fails() -> None:
    events, progress = read("failed.jsonl")
    failure = progress.failure
    assert failure is not None
    assert failure.error == progress.error == "exit code: 1"
    assert failure.line == 5
    assert failure.log[-1] == "ls: /nonexistent: No such file or directory"
    assert [event.error for event in done(events) if event.error] == ["exit code: 1"]


def test_a_stream_that_is_cut_off_ends_every_step() -> None:
    progress = Progress()
    for line in (DATA / "built.jsonl").read_text().splitlines():
        progress.feed(line)
        if '"logs"' in line:
            break
    (ended,) = progress.finish()
    assert isinstance(ended, StepDone) and ended.error == "the build ended"
    for line in ("", "[]", "null", "not json {", '{"vertexes": null}', '{"x": 1}'):
        assert Progress().feed(line) == ()


def test_names_are_short() -> None:
    run = "[stage-0 2/9] RUN --mount=type=cache,target=/c   --network=none pip  install"
    assert short(run) == "[2/9] RUN pip install"
    assert short("[base 1/4] COPY --link --chown=1:1 a b") == "[base 1/4] COPY a b"
    assert len(short("RUN " + "x" * 500)) == 140
