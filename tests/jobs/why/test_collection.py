"""Whole logs: those of public threads, each told with the ending that a person sees; those of runs
that ended well; those of several replicas in one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.jobs.why import table
from tests.jobs.why.measure import NO_ENDING, UNSEEN, cases, row, told, wrong

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
"""link: where the lines were read. expected: an ending's name, "unknown" or "ended-well"."""
DOCUMENT = Path(__file__).parents[3] / "docs/jobs.md"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_ending_that_a_person_sees_is_told(path: Path) -> None:
    assert wrong(cases(path)) == []


def test_each_case_has_a_link_of_its_own_and_an_ending_of_the_table() -> None:
    known = {ending.name for ending in table.endings()} | set(NO_ENDING)
    every = [case for path in (*FILES, UNSEEN) for case in cases(path)]
    links = [case["link"] for case in every]
    assert len(set(links)) == len(links) > 400
    assert all(re.fullmatch(r"https://\S+", link) for link in links)
    assert {case["expected"] for case in every} <= known


def test_the_document_has_the_numbers_that_the_command_prints() -> None:
    assert row("unseen", cases(UNSEEN)) in DOCUMENT.read_text(encoding="utf-8")


# --- ended well -----------------------------------------------------------------------------------

START = """\
Could not find cuda drivers on your machine, GPU will not be used.
E cuda_driver.cc:152] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device
[W socket.cpp:697] The client socket has failed to connect (errno: 101 - Network is unreachable)
WARNING: Retrying (Retry(total=4)) after 'NewConnectionError: [Errno 111] Connection refused'
W bfc_allocator.cc:296] ran out of memory trying to allocate 1.17GiB. This is not a failure
W cpu_allocator_impl.cc:83] Allocation of 1207959552 exceeds 10% of free system memory.
UserWarning: The given NumPy array is not writable
"""
EXIT = """\
Exception ignored in: <function Pool.__del__ at 0x7f>
AttributeError: 'NoneType' object has no attribute 'dumps'
W local_rendezvous.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence
[rank0]:[W ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed
NCCL WARN NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.
wandb: WARNING Path /wandb/ wasn't writable, using system temp directory
"""
STEPS = "".join(f"step {step} of 40: loss {1 / step:.3f}\n" for step in (10, 20, 30, 40))


ENDS = (
    "`Trainer.fit` stopped: `max_epochs=3` reached.",
    "{'train_runtime': 12.3, 'train_samples_per_second': 8.1, 'train_loss': 0.4, 'epoch': 3.0}",
    "2026-11-21 07:00:09 | INFO | fairseq_cli.train | done training in 33.6 seconds",
    "INFO:tensorflow:Loss for final step: 0.1325.",
    "INFO:tensorflow:Assets written to: /job/model/assets",
    "300 epochs completed in 1.2 hours.\nOptimizer stripped from exp/weights/best.pt",
    "Model saved to /job/model.keras",
    "wandb: Synced 5 W&B file(s), 0 media file(s)",
    "Training complete.",
    "***** train metrics *****\n  epoch = 3.0\n  train_loss = 0.41",
)


def test_a_run_that_ended_well_is_no_ending_whatever_it_warned_of() -> None:
    for end in ENDS:
        for text in (f"{START}{STEPS}{end}\n", f"{STEPS}{EXIT}{end}\n"):
            diagnosis = told(text)
            assert diagnosis.ending in NO_ENDING, (end, diagnosis.ending, diagnosis.evidence)


# --- replicas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "[rank{n}]: {text}",
        "[default{n}]:{text}",
        "[1,{n}]<stderr>:{text}",
        "[pod/trainer-{n}/main] {text}",
        "worker-{n} | {text}",
        "worker-{n}  {text}",
        "{n}: {text}",
    ],
)
def test_replicas_in_one_file_are_told_apart(line: str) -> None:
    """Rank 1 was first; what rank 0 says later is no cause, and its steps outlive nothing."""
    words = [
        (0, "No space left on device"),
        *((1, f"step {n} of 9: loss 0.1") for n in range(4)),
        (1, "OOM when allocating tensor with shape[64] by allocator GPU_0_bfc"),
    ]
    text = "\n".join(line.format(n=n, text=words_) for n, words_ in words)
    answer = told(text)
    assert answer.ending == "disk-full"
    assert re.fullmatch(r"train\.log:1, .*0.*", answer.evidence[0].where)
    alone = "\n".join(words_ for _, words_ in words)
    assert told(alone).ending == "device-memory"


# --- progress -------------------------------------------------------------------------------------

WAITED = """\
Warning  FailedScheduling  0/9 nodes are available: 9 Insufficient nvidia.com/gpu.
Normal   TriggeredScaleUp  pod triggered scale-up: [{pool-1 0->1 (max: 8)}]
"""


@pytest.mark.parametrize(
    "came",
    [
        "Normal   Started  Started container trainer",
        "epoch 1: loss 2.31",
        "Normal   Admitted  Admitted by ClusterQueue gpu-cq, wait time since reservation was 0s",
    ],
)
def test_what_a_job_waited_for_is_no_ending_once_it_came(came: str) -> None:
    assert told(f"{WAITED}{came}\n").ending in NO_ENDING
    assert told(f"{came}\n{WAITED.splitlines()[0]}\n").ending == "stockout"


def test_data_of_which_a_part_is_damaged_is_no_ending_and_all_of_it_is() -> None:
    scan = "Scanning train.cache... 12 images, 0 backgrounds, {} corrupt: 100%"
    assert told(scan.format(3)).ending in NO_ENDING
    assert told(scan.format(12)).ending == "data-corrupt"


def test_a_skipped_picture_is_no_damaged_data() -> None:
    line = "PIL.UnidentifiedImageError: cannot identify image file 'cats/7.jpg'"
    assert told(f"warning: {line}, skipping it\nepoch 1: loss 0.4\n").ending in NO_ENDING
    assert told(line).ending == "data-corrupt"


def test_a_fallback_to_the_cpu_is_the_cause_of_a_timeout_that_follows() -> None:
    """However many steps came between: they are why it took so long."""
    fell = "W plugin: no CUDA device is usable. Falling back to CPU.\n"
    over = "DeadlineExceeded: Job was active longer than specified deadline\n"
    assert told(f"{fell}{STEPS}{over}").ending == "no-gpu"
    assert told(f"{STEPS}{over}").ending == "timeout"
    assert told(f"{fell}{STEPS}").ending in NO_ENDING


@pytest.mark.parametrize(
    ("lines", "ending"),
    [
        ("libcublas.so.11: symbol f version libcublasLt.so.11 not defined in file x", "versions"),
        ("Error 803: system has unsupported display driver", "driver-mismatch"),
        ("insufficient unused quota for nvidia.com/gpu in flavor a, 1 more needed", "quota"),
        (
            "couldn't assign flavors to pod set main: resource memory unavailable in ClusterQueue",
            "queue-unfit",
        ),
        (
            "couldn't assign flavors to pod set a: untolerated taint {x true NoSchedule} in flavor "
            "spot, insufficient unused quota for nvidia.com/gpu in flavor a100, 2 more needed",
            "quota",
        ),
        ("Can't admit new workloads: references missing ResourceFlavor(s): a100.", "queue-unfit"),
        ("no topology domains at level: cloud.google.com/gce-topology-block", "queue-unfit"),
        ('pod set main: topology "default" allows to fit only 3 out of 8 pod(s)', "queue-full"),
        ("Evicted: Exceeded the PodsReady timeout default/jobset-cats-1a2b3", "queue-evicted"),
        ("Preempted to accommodate a workload (UID: a) in the ClusterQueue", "queue-full"),
        ("LocalQueue gpus is terminating or missing", "queue-unfit"),
        ("LocalQueue gpus is stopped", "queue-unfit"),
        ("The LocalQueue is stopped", "queue-unfit"),
        ('pods "a-0-0-" is forbidden: no PriorityClass with name high was found', "pod-refused"),
        (
            "docker: OCI runtime create failed: runc create failed: error running hook #0\n"
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
            "driver-too-old",
        ),
        ("Reason: OutOfnvidia.com/gpu", "stockout"),
        ("RuntimeError: CUDA error: CUDA driver is a stub library", "driver-stub"),
        ("FATAL: kernel `f_sm80` is for sm80-sm100, but was built for sm75", "no-kernels"),
        ("no match for platform in manifest: not found\nErrImagePull", "architecture"),
        ("Failed to load library libonnxruntime_providers_cuda.so with error", "versions"),
        ("InvalidArgument: data/a.tfrecord: Not a valid TFRecord", "data-corrupt"),
    ],
)
def test_a_cause_is_told_over_what_follows_from_it(lines: str, ending: str) -> None:
    assert told(lines).ending == ending
