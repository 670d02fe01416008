"""The rule that chooses among endings, and what is said where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.jobs.why.diagnose import SERVICE, Diagnosis, diagnose
from builder.jobs.why.logs import JobLog, Line
from trainer import guard

OOM = "OOM when allocating tensor with shape[64] by allocator GPU_0_bfc"
PEER = "UnavailableError: Socket closed"
NO_GPU = "Could not find cuda drivers on your machine, GPU will not be used."
OWN = "ValueError: the third reel is out of tune"


def as_lines(*lines: str | tuple[str, str]) -> tuple[Line, ...]:
    """Lines of a replica: "text" of chief-0, or (replica, text)."""
    pairs = [line if isinstance(line, tuple) else ("chief-0", line) for line in lines]
    return tuple(Line(text, f"{name}:{n}", name) for n, (name, text) in enumerate(pairs, 1))


def why(*lines: str | tuple[str, str], **more: object) -> Diagnosis:
    return diagnose(replace(JobLog("cats", as_lines(*lines)), **more))  # type: ignore[arg-type]


def event(name: str, text: str, replica: str = "chief-0") -> Line:
    return Line(text, f"{replica}:1", replica, name)


# --- the rule -------------------------------------------------------------------------------------


def test_a_cause_wins_over_its_consequence_in_another_replica() -> None:
    diagnosis = why(("worker-1", PEER), ("worker-0", OOM), ("chief-0", PEER), state="failed")
    assert (diagnosis.ending, diagnosis.certainty) == ("device-memory", "certain")
    assert [each.where for each in diagnosis.evidence] == ["worker-0:2"]
    assert [each.ending for each in diagnosis.seen] == ["peer-lost"]


def test_what_the_run_outlived_is_no_ending() -> None:
    steps = [f"step {n} of 10: loss 0.1" for n in range(1, 4)]
    assert why("No space left on device", *steps, OOM).ending == "device-memory"
    assert why("No space left on device", *steps).ending == "unknown"
    assert why("No space left on device", *steps[:2]).ending == "disk-full"
    others = [("worker-0", step) for step in steps]
    assert why(("chief-0", "No space left on device"), *others).ending == "disk-full"
    assert why((SERVICE, "Resources are insufficient in region: x"), *steps).ending == "unknown"


def test_a_loss_that_is_a_number_again_takes_back_that_it_was_none() -> None:
    assert why("step 0: loss is nan", "step 9: loss: 0.41").ending == "unknown"
    assert why("step 0: loss is nan", "step 9: accuracy: 0.41").ending == "nan-loss"
    assert why("step 0: loss is nan", ("worker-0", "step 9: loss: 0.41")).ending == "nan-loss"


def test_an_ending_wins_over_its_own_trace() -> None:
    line = "NCCL WARN Call to posix_fallocate failed : No space left on device"
    assert why(line).ending == "shm"
    assert why("uncorrectable ECC error encountered", "NCCL error in: x").ending == "device-lost"
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1523)"
    assert why(watchdog, "Fatal Python error: Aborted").ending == "nccl"
    assert why(watchdog, "Fatal Python error: Segmentation fault").ending == "crash"


def test_warnings_are_an_ending_only_where_nothing_else_is() -> None:
    alone = why(NO_GPU)
    assert (alone.ending, alone.certainty) == ("no-gpu", "likely")
    assert why(NO_GPU, OOM).ending == "device-memory"
    own = why(NO_GPU, OWN)
    assert own.ending == "unknown" and [each.ending for each in own.seen] == ["no-gpu"]


def test_the_kind_of_an_error_counts_where_no_ending_has_its_words() -> None:
    kind = "vendor.ResourceError: the quota of these chips is used up"
    by_kind = why(kind, state="failed")
    assert (by_kind.ending, by_kind.certainty) == ("quota", "likely")
    assert why(kind, OOM).ending == "device-memory"
    assert why(f"WARNING: {kind}").ending == "unknown"
    steps = [f"step {n} of 10: loss 0.1" for n in range(1, 4)]
    assert why(kind, *steps).ending == "unknown"


def test_an_exception_is_read_before_a_complaint_and_with_the_line_that_it_goes_on_in() -> None:
    complaint = "error: the disk is nearly full"
    assert why(complaint, "ValueError: the shapes of a batch do not match").ending == "tensors"
    assert why("pyarrow.lib.ArrowError:", "the archive is damaged").ending == "data-corrupt"
    assert why("--- Logging error ---", "ValueError: shapes do not match").ending == "unknown"


def test_what_a_program_does_without_is_a_complaint_only_at_the_end_of_its_log() -> None:
    lacks = "the weights of the reel are missing"
    assert why(lacks, "reading").ending == "checkpoint-mismatch"
    assert why(lacks, "reading", "adding up", "writing", "resting").ending == "unknown"
    assert why(lacks, "step 1: loss 0.1").ending == "unknown"
    failed = f"error: {lacks}"
    assert why(failed, "reading", "adding up", "writing", "resting").ending == "checkpoint-mismatch"


@pytest.mark.parametrize(
    "survived", ["falling back to those of last year", "going to /tmp instead", "will proceed"]
)
def test_a_line_that_says_what_the_program_does_next_is_no_error(survived: str) -> None:
    line = "error: no such file or directory: the dataset is not found"
    assert why(line).ending == "data-missing"
    assert why(f"{line}, {survived}").ending == "unknown"
    assert why("RuntimeError: the dataset is not found. To debug, look").ending == "data-missing"
    assert why('  warnings.warn("error: the dataset is not found")').ending == "unknown"


def test_a_failed_check_of_a_library_is_read_like_an_exception() -> None:
    check = "[1:2:3] src/reader.cc:7: Check failed: n > 0 number of reels must be positive"
    assert why(check, "terminate called after throwing an instance of 'E'").ending == "arguments"


@pytest.mark.parametrize(
    ("speaker", "ending"),
    [
        ("FATAL:   container creation failed: {}", "start-failed"),
        ("Error: OCI runtime error: crun: {}", "start-failed"),
        ("srun: error: Task launch for StepId=1.0 failed on node a: {}", "start-failed"),
        ("slurmstepd: error: pyxis: failed to import docker image: {}", "image-pull"),
        ("ValueError: {}", "data-missing"),
    ],
)
def test_who_speaks_tells_what_the_same_words_mean(speaker: str, ending: str) -> None:
    assert why(speaker.format("the data file does not exist")).ending == ending


def test_an_answer_is_certain_where_the_job_is_known_to_have_failed() -> None:
    assert why(OOM).certainty == "likely"
    assert why(OOM, state="failed").certainty == "certain"


def test_what_the_engine_told_of_memory_wins() -> None:
    diagnosis = why(PEER, exit_code=137, state="failed", out_of_memory="worker-0")
    assert (diagnosis.ending, diagnosis.certainty) == ("host-memory", "certain")
    assert diagnosis.evidence[0].text == "worker-0 ran out of memory"


# --- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "ending"),
    [(137, "killed"), (139, "crash"), (132, "cpu-instructions"), (135, "shm"), (124, "timeout")],
)
def test_an_exit_code_suggests_an_ending_where_no_line_tells_one(code: int, ending: str) -> None:
    diagnosis = why("step 1", exit_code=code, state="failed")
    assert (diagnosis.ending, diagnosis.certainty) == (ending, "likely")
    assert diagnosis.evidence[0].text == f"exit code {code}"
    assert why(OOM, exit_code=code, state="failed").ending == "device-memory"


def test_a_signal_is_a_better_word_than_a_lost_peer_but_for_a_stop() -> None:
    assert why(PEER, exit_code=137, state="failed").ending == "killed"
    assert why(PEER, exit_code=143, state="failed").ending == "peer-lost"


def test_the_trainers_own_line_names_the_cause_behind_its_code() -> None:
    with pytest.raises(guard.Refused) as refused:
        guard.check("TPU-v3", {})
    for code, text, ending in (
        (3, "cannot go on: a/b; No space left on device", "disk-full"),
        (2, "there are no records at /records/train-*", "data-missing"),
        (4, "the loss of step 40 is nan: try a smaller --learning-rate", "nan-loss"),
        (2, "the checkpoints in /job are of another model, image size", "checkpoint-mismatch"),
        (2, str(refused.value), "accelerator-refused"),
        (2, "--batch-size 7: is no multiple of the replicas", "trainer-input"),
        (3, "cannot write there", "trainer-outside"),
    ):
        diagnosis = diagnose(JobLog("cats", (event("error", text),), "failed", code, ours=True))
        assert diagnosis.ending == ending
        assert text in [line.text for line in diagnosis.evidence]


# --- nothing known, nothing wrong -----------------------------------------------------------------


def test_an_unknown_ending_shows_the_last_words() -> None:
    diagnosis = why("a", "KeyError: 'label'", "cleaning up", exit_code=1, state="failed")
    assert {diagnosis.ending, diagnosis.certainty} == {"unknown"} and diagnosis.again == "no"
    assert [each.text for each in diagnosis.evidence] == ["exit code 1", "KeyError: 'label'"]
    assert why("ok", "Job failed.", "bye").evidence[-1].text == "Job failed."
    words = "it all went wrong"
    assert why("starting", words, exit_code=1).evidence[-1].text == words
    assert "no lines" in why().happened and why().evidence == ()


def test_an_unknown_ending_shows_the_first_and_the_last_error_that_is_no_trace_of_another() -> None:
    first, last = "MyError: the reel is out of tune", "OtherError: the show cannot go on"
    traces = [
        "MyError: Caught MyError in DataLoader worker process 0.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py",
        "subprocess.CalledProcessError: Command 'train' returned non-zero exit status 1.",
    ]
    shown = [line.text for line in why(first, OWN, last, *traces).evidence]
    assert shown == [first, last]
    steps = [f"step {n} of 10: loss 0.1" for n in range(1, 4)]
    assert [line.text for line in why(first, *steps, last).evidence] == [last]


def test_an_unknown_exception_stands_with_the_deepest_line_of_the_program_itself() -> None:
    own = 'File "/job/train.py", line 12, in step'
    library = 'File "/usr/lib/python3/dist-packages/torch/nn.py", line 9, in call'
    lines = (
        "Traceback (most recent call last):",
        f"  {own}",
        "    fit()",
        f"  {library}",
        "    x()",
    )
    assert [line.text for line in why(*lines, OWN).evidence] == [own, OWN]
    assert [line.text for line in why(own, OWN).evidence] == [OWN]  # of no traceback


def test_an_exception_of_a_causes_kind_wins_over_a_consequence_in_words() -> None:
    unfit = "RuntimeError: the sizes of the reels do not match"
    assert why(unfit, PEER).ending == "tensors"
    assert why("step: the sizes of the reels do not match", PEER).ending == "peer-lost"
    assert why(unfit, OOM).ending == "device-memory"


def test_an_exception_that_says_little_is_read_with_the_line_that_raised_it() -> None:
    assert why("    name = config['name']", "KeyError: 'name'").ending == "arguments"
    assert why("    name = labels['name']", "KeyError: 'name'").ending == "unknown"
    assert why("    assert mode in ('a', 'b')", "AssertionError").ending == "arguments"
    assert why("    assert ready", "AssertionError").ending == "unknown"


def test_whether_an_unknown_exception_may_end_well_again() -> None:
    assert why("KeyError: 'label'").again == "no"
    assert why("WeatherError: it rains").again == "unknown"


def test_a_job_that_ended_well_says_so_and_what_it_warned_of() -> None:
    diagnosis = why(NO_GPU, "step 1", state="succeeded", exit_code=0)
    assert diagnosis.ending == "ended-well"
    assert [each.ending for each in diagnosis.seen] == ["no-gpu"]
    assert why("Job completed successfully.").ending == "ended-well"
    assert why("Job completed successfully.", OOM).ending == "device-memory"
    assert why(OOM, "Job completed successfully.").ending == "ended-well"
    assert why("Job completed successfully.", OWN).ending == "unknown"
    assert diagnose(JobLog("cats", (event("done", "finished at step 10"),))).ending == "ended-well"


def test_a_programs_own_word_for_a_good_end_counts_at_the_end_of_its_log() -> None:
    assert why("INFO| training done", "saving 8 parameters").ending == "ended-well"
    assert why("Finished training.").ending == "ended-well"
    assert why("Training complete in 1m 7s", "Best val Acc: 0.95").ending == "ended-well"
    assert why("INFO Training finished in 120.5 s.").ending == "ended-well"
    assert why("Training time 0:12:33").ending == "ended-well"
    assert why("Training finished in error").ending == "unknown"
    assert why("epoch 3, training time: 12 s").ending == "unknown"
    assert why("training done", "a", "b", "c", "d").ending == "unknown"
    assert why("training done", OWN).ending == "unknown"
    assert why("Model saved to a.pt", "bye").ending == "ended-well"
    assert why("Model saved to a.pt", "epoch 2: loss 0.4").ending == "unknown"
    assert why("training done", exit_code=1, state="failed").ending == "unknown"


def test_what_holds_a_job_up_is_shown_also_in_words_that_no_ending_has() -> None:
    refused = "Error creating: pods is forbidden by the weather"
    held = JobLog("job", (Line(refused, "now", now=True),), state="pending")
    said = diagnose(held)
    assert said.ending == "waiting"
    assert [line.text for line in said.evidence] == [refused]
