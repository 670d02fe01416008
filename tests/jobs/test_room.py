"""Where there is room: the ways to run a job, tried one by one; never two jobs, whatever breaks."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as api

from builder.core.errors import InputError, OutsideError
from builder.jobs import description, lease, submission
from builder.jobs.cost import prices, quote
from builder.jobs.lease import BucketLease, Claim, FolderLease, Lease
from builder.jobs.places import candidates
from builder.jobs.places.kubernetes import kubeconfig
from builder.jobs.places.kubernetes.api import Api
from builder.jobs.places.kubernetes.cluster import Cluster as OneCluster
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.vertex import checks
from builder.jobs.places.vertex.place import VertexAI
from builder.jobs.places.vertex.service import Service
from builder.jobs.room.choices import choices
from builder.jobs.submission import Candidate
from tests.clock import replace_pauses
from tests.emulators import cloud_build as storage
from tests.emulators import vertex as emulator
from tests.emulators.kubernetes import server as cluster
from tests.emulators.kubernetes.kubelet import Scripted
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401
from tests.jobs.test_job_command import loopback as emulated  # noqa: F401
from tests.jobs.test_kubernetes import ready as kubernetes_job

BASE = "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: V100\n"
REGIONS = ("us-central1", "europe-west4", "asia-east1")
JOB = (
    BASE
    + "job_dir: gs://my-bucket/jobs/{job}\narguments: {steps: 100}\nscheduling: {patience: 20s}\n"
    + "alternatives: [{region: europe-west4}, {region: asia-east1}]\n"
)
ENDED = emulator.ENDED


@pytest.fixture
def loopback() -> Iterator[emulator.Loopback]:
    with emulator.running() as found:
        yield found


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Storage]:
    with storage.loopback_cloud() as cloud:
        cloud.storage.make("my-bucket")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
        yield cloud.storage


@pytest.fixture
def clock(loopback: emulator.Loopback, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time: each one lasts until every job that can has started."""
    slept, never = list[float](), threading.Event()

    def pause(seconds: float) -> None:
        slept.append(seconds)
        while _starting(loopback.service):
            never.wait(0.0005)

    replace_pauses(monkeypatch, pause)
    return slept


def _starting(service: emulator.JobService) -> bool:
    waits = (api.JobState.JOB_STATE_QUEUED, api.JobState.JOB_STATE_PENDING)
    with service.lock:
        return any(
            one.state in waits and one.name.split("/")[3] not in service.faults.full
            for one in service.jobs.values()
        )


def ways(loopback: emulator.Loopback, text: str = JOB) -> tuple[Candidate, ...]:
    """The ways to run a job of this text on the loopback service."""
    job, made = jobfiles.job(text), list[Candidate]()
    for one in choices(job, jobfiles.TARGETS):
        where = Service(emulator.PROJECT, one.job.region, loopback.grpc, loopback.rest, "grpc")
        image = jobfiles.image(one.job.image)
        ready = checks.ready(
            one.job, image, where.region, project=where.project, targets=jobfiles.TARGETS
        )
        place = VertexAI(where)
        price = quote.hourly(ready, prices.table())
        made.append(Candidate(place, ready, f"{ready.placements[0]}, {place.where}", usd=price))
    return candidates.grouped(made, job)


# --- the ways, and their order --------------------------------------------------------------------


def told(text: str) -> list[tuple[str | None, str | None, str | None, str]]:
    """Machine, accelerator, region and strategy of each way."""
    found = choices(jobfiles.job(text), jobfiles.TARGETS)
    return [
        (
            one.job.machine,
            one.job.accelerators.type if one.job.accelerators else one.job.topology,
            one.job.region,
            one.job.scheduling.strategy,
        )
        for one in found
    ]


def test_alternatives_are_tried_as_they_stand_after_the_job_itself() -> None:
    text = BASE + (
        "alternatives:\n- {region: europe-west4, strategy: spot}\n"
        "- {machine: g2-standard-8, accelerators: L4}\n- {on: kubernetes}\n"
    )
    assert told(text) == [
        ("n1-standard-8", "V100", "us-central1", "standard"),
        ("n1-standard-8", "V100", "europe-west4", "spot"),
        ("g2-standard-8", "L4", "us-central1", "standard"),
        ("n1-standard-8", "V100", "us-central1", "standard"),
    ]
    found = choices(jobfiles.job(text), jobfiles.TARGETS)
    assert [one.job.image for one in found] == ["v100", "v100", "l4", "v100"]
    assert [one.on for one in found] == [None, None, None, "kubernetes"]


def test_the_cheapest_of_several_in_a_part_of_the_world() -> None:
    text = BASE + "cheapest: {of: [V100, T4, L4], regions: europe, strategies: [spot, standard]}\n"
    found = told(text)
    assert {region.split("-")[0] for _, _, region, _ in found if region} == {"europe"}
    machines = {(machine, name) for machine, name, _, _ in found}
    assert machines == {("n1-standard-8", "V100"), ("n1-standard-8", "T4"), ("g2-standard-8", "L4")}
    assert [one for one in found if one[1] == "V100"] == [
        ("n1-standard-8", "V100", "europe-west4", strategy) for strategy in ("spot", "standard")
    ]


def test_an_image_that_is_made_for_another_accelerator_is_not_sent(
    loopback: emulator.Loopback,
) -> None:
    text = BASE + "alternatives: [{machine: n1-standard-8, accelerators: P100}]\n"
    with pytest.raises(InputError, match="v100 is an image for V100") as caught:
        ways(loopback, text)
    assert caught.value.message.startswith("jobs/cats.yaml: alternatives.0: ")


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("alternatives: [{}]\n", 5, "says nothing that differs"),
        ("alternatives: [{region: europe}]\n", 5, "'europe' is not a region"),
        ("alternatives: [{strategy: spt}]\n", 5, "'spt' is not one of"),
        ("alternatives: [{on: here}]\n", 5, "'here' is not one of"),
        ("alternatives: [{regoin: europe-west4}]\n", 5, "regoin"),
        ("alternatives: [{accelerators: two}]\nimage: v100\n", 6, "image"),
        ("alternatives: 3\n", 5, "alternatives"),
        ("cheapest: {of: []}\n", 5, "is an empty list"),
        ("cheapest: {of: [V100, V100]}\n", 5, "stands there twice"),
        ("cheapest: {regions: europe}\n", 5, "of"),
        ("cheapest: {of: V100, regions: Europe}\n", 5, "'Europe' is not a region"),
        ("cheapest: {of: V100}\nalternatives: [{region: a-b1}]\n", 1, "two orders of the same"),
        ("scheduling: {patience: 5m}\n", 1, "there are none"),
        (
            "cheapest: {of: V100}\nstudy: {metric: a, parameters: {x: {values: [1]}}}\n",
            1,
            "a study",
        ),
    ],
)
def test_a_bad_file_is_one_line(more: str, line: int, said: str) -> None:
    with pytest.raises(InputError) as caught:
        jobfiles.job(BASE + more)
    first = caught.value.message.splitlines()[0]
    assert first.startswith(f"jobs/cats.yaml:{line}: ") and said in first
    assert caught.value.fix or " -> " in first


@pytest.mark.parametrize(
    ("of", "regions", "said", "fix"),
    [
        ("V101", "europe", "cheapest.of.0: no accelerator is called 'V101'", "V100"),
        ("3 x V100", "europe", "no machine carries 3 x V100", "4 x V100"),
        ("V100", "europa", "'europa' is no region", "europe"),
        ("V100", "us-central9", "'us-central9' is no region", "us-central1"),
    ],
)
def test_what_is_not_on_offer_is_told_with_what_is(
    tmp_path: Path, of: str, regions: str, said: str, fix: str
) -> None:
    file = tmp_path / "jobs" / "cats.yaml"
    file.parent.mkdir()
    file.write_text(BASE + f"cheapest: {{of: {of}, regions: {regions}}}\n")
    job = description.load(tmp_path, "cats")
    with pytest.raises(InputError) as caught:
        choices(job, jobfiles.TARGETS)
    assert said in caught.value.message and "jobs/cats.yaml:5: " in caught.value.message
    assert fix in caught.value.fix


def test_all_ways_have_one_key_and_their_own_choice(loopback: emulator.Loopback) -> None:
    found = ways(loopback)
    assert len({one.place.key(one.request) for one in found}) == 1
    assert len({one.request.choice for one in found}) == 3
    bodies = [one.place.render(one.request) for one in found]
    assert len({body["displayName"] for body in bodies}) == 1
    folders = {body["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"] for body in bodies}
    assert folders == {f"gs://my-bucket/jobs/{bodies[0]['displayName']}"}
    assert ways(loopback)[0].request.group == found[0].request.group
    other = ways(loopback, JOB.replace("asia-east1", "us-west1"))
    assert other[0].request.group != found[0].request.group


# --- trying ---------------------------------------------------------------------------------------


def send(loopback: emulator.Loopback, folder: Path, **more: Any) -> submission.Submitted:
    return submission.submit_first(ways(loopback), locks=folder, **more)


def states(service: emulator.JobService) -> dict[str, list[str]]:
    """The states of the jobs in each region."""
    found: dict[str, list[str]] = {}
    for one in service.jobs.values():
        state = one.state.name.removeprefix("JOB_STATE_").lower()
        found.setdefault(one.name.split("/")[3], []).append(state)
    return found


def test_quota_then_a_stockout_then_room(
    loopback: emulator.Loopback, clock: list[float], tmp_path: Path
) -> None:
    faults, told = loopback.service.faults, list[int]()
    faults.no_quota, faults.no_machines = {"us-central1"}, {"europe-west4"}
    sent = send(loopback, tmp_path, on_tried=lambda tried: told.append(len(tried)))
    loopback.settle()
    assert sent.created and sent.job.region == "asia-east1"
    assert "exceed quota limits" in sent.tried[0].why
    assert "Resources are insufficient in region: europe-west4" in sent.tried[1].why
    assert told == [1, 2] and loopback.service.at_once == 1
    assert states(loopback.service) == {"europe-west4": ["failed"], "asia-east1": ["succeeded"]}
    again = send(loopback, tmp_path)
    assert (again.created, again.job.name, again.why) == (
        False,
        sent.job.name,
        "it succeeded before",
    )


def test_a_job_that_waits_too_long_is_cancelled_before_the_next_is_created(
    loopback: emulator.Loopback, clock: list[float], tmp_path: Path
) -> None:
    loopback.service.faults.full = {"us-central1"}
    sent = send(loopback, tmp_path)
    loopback.settle()
    assert sent.job.region == "europe-west4" and loopback.service.at_once == 1
    assert "it waited" in sent.tried[0].why and sum(clock) >= 20
    assert states(loopback.service) == {"us-central1": ["cancelled"], "europe-west4": ["succeeded"]}


def test_the_last_way_is_waited_for(
    loopback: emulator.Loopback, clock: list[float], tmp_path: Path
) -> None:
    loopback.service.faults.full = set(REGIONS)
    sent = send(loopback, tmp_path)
    assert sent.created and sent.job.waits and sent.job.region == "asia-east1"
    assert states(loopback.service)["asia-east1"] == ["queued"]


def test_another_command_goes_on_with_the_search(
    loopback: emulator.Loopback, clock: list[float], tmp_path: Path
) -> None:
    """The first was interrupted while its job waited."""
    service = loopback.service
    service.faults.full = {"us-central1", "europe-west4"}
    first = ways(loopback)
    submission.submit(first[1].place, first[1].request, locks=tmp_path / "elsewhere")
    sent = send(loopback, tmp_path)
    loopback.settle()
    assert sent.job.region == "asia-east1" and service.at_once == 1
    assert states(service) == {"europe-west4": ["cancelled"], "asia-east1": ["succeeded"]}


def test_no_room_anywhere_leaves_no_job(
    loopback: emulator.Loopback, clock: list[float], tmp_path: Path
) -> None:
    loopback.service.faults.no_quota = set(REGIONS)
    with pytest.raises(submission.NoRoom, match="none of 3 ways to run it has room") as caught:
        send(loopback, tmp_path)
    assert not loopback.service.jobs and "job why" in caught.value.fix


def test_a_job_that_fails_by_itself_is_not_tried_elsewhere(clock: Any, tmp_path: Path) -> None:
    with emulator.running(emulator.Script(code=17)) as broken:
        sent = send(broken, tmp_path)
        broken.settle()
        assert sent.created and not sent.tried and len(broken.service.jobs) == 1


def test_two_hundred_submissions_in_which_everything_breaks_leave_one_job_each(
    loopback: emulator.Loopback,
    bucket: storage.Storage,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Stockouts, quotas, lost answers, a service that is away and lists that lag, in random order;
    each job is submitted again, by this machine and by another one. The lease is in a bucket for
    one job in four, in a folder that both share for the others. BUILDER_RANDOM_FAULTS: how often.
    """
    in_a_bucket = VertexAI.lease

    def leased(self: VertexAI, request: Any, number: int = 1) -> Lease | None:
        if int(request.group) % 4 == 0:
            return in_a_bucket(self, request, number)
        return FolderLease(tmp_path / "shared" / request.group)

    monkeypatch.setattr(VertexAI, "lease", leased)
    dice, service = random.Random(15), loopback.service
    create, lists = "CreateCustomJob", "ListCustomJobs"
    found = ways(loopback)
    for number in range(int(os.environ.get("BUILDER_RANDOM_FAULTS", "200"))):
        faults, room = emulator.Faults(), dice.choice(REGIONS)
        for region in REGIONS:
            kind = dice.choice((faults.no_quota, faults.no_machines, faults.full, set()))
            kind |= {region} if region != room else set()
        faults.list_lag, faults.cut_create = dice.randint(0, 4), dice.randint(0, 1)
        faults.bursts = [(create, 503, dice.randint(0, 1)), (lists, 503, dice.randint(0, 1))]
        service.faults, service.at_once = faults, 0
        service.jobs.clear()  # all have ended; the service looks at each of them in every list
        group = f"{number:012d}"
        these = [replace(one, request=replace(one.request, group=group)) for one in found]
        names = set()
        for machine in dice.choices(("a", "b"), k=2):
            sent = submission.submit_first(these, locks=tmp_path / machine)
            names.add(sent.job.name)
        loopback.settle_all_but(faults.full)
        succeeded = api.JobState.JOB_STATE_SUCCEEDED
        left = [one.name for one in service.jobs.values() if one.state == succeeded]
        assert len(left) == 1 and names == set(left), (number, faults)
        assert service.at_once == 1, (number, faults)


def test_machines_that_submit_at_once_create_one_job(
    loopback: emulator.Loopback,
    bucket: storage.Storage,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The list shows the job much too late; the lease in the job's folder tells."""
    monkeypatch.setattr(submission, "LOOK", 0.01)
    loopback.service.faults.list_lag = 1000
    hold = threading.Event()
    loopback.service.executor = emulator.Script(wait=hold)
    with ThreadPoolExecutor(4) as pool:
        folders = [tmp_path / str(n) for n in range(4)]
        sent = list(pool.map(lambda folder: send(loopback, folder), folders))
    hold.set()
    loopback.settle()
    assert len(loopback.service.jobs) == 1 and len({one.job.name for one in sent}) == 1
    assert sum(one.created for one in sent) == 1


def test_a_bucket_that_may_not_be_written_to_is_told_and_the_job_is_sent(
    loopback: emulator.Loopback, bucket: storage.Storage, clock: list[float], tmp_path: Path
) -> None:
    bucket.buckets.clear()
    assert send(loopback, tmp_path).created


# --- a cluster among the ways ---------------------------------------------------------------------


@pytest.fixture
def gke(tmp_path: Path) -> Iterator[cluster.Cluster]:
    with cluster.running(tmp_path, Scripted()) as found:
        yield found


def mixed(
    loopback: emulator.Loopback, gke: cluster.Cluster, first: str = "cluster"
) -> list[Candidate]:
    """One way in the cluster and one on Vertex AI, with one key."""
    vertex = ways(loopback)[0]
    access = kubeconfig.load(None, {"KUBECONFIG": str(gke.kubeconfig())})
    place = Kubernetes(Api(access), OneCluster())
    request = replace(kubernetes_job(BASE), group=vertex.request.group, choice="c" * 12)
    there = Candidate(place, request, "the cluster")
    found = [replace(one, patience=0.05) for one in (there, vertex)]
    return found if first == "cluster" else found[::-1]


def test_a_cluster_without_room_is_left_for_vertex_ai(
    loopback: emulator.Loopback,
    gke: cluster.Cluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(submission, "LOOK", 0.02)
    gke.controllers.pods_stay_pending = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    both = mixed(loopback, gke)
    sent = submission.submit_first(both, locks=tmp_path)
    assert sent.place is both[1].place and sent.created and len(sent.tried) == 1
    assert both[0].place.find("cats").state == "cancelled"
    again = submission.submit_first(both, locks=tmp_path / "elsewhere")
    assert (again.created, again.job.name) == (False, sent.job.name)


def test_a_quota_of_the_namespace_leads_to_the_next_way_and_room_there_is_taken(
    loopback: emulator.Loopback, gke: cluster.Cluster, clock: list[float], tmp_path: Path
) -> None:
    gke.faults.quota = True
    sent = submission.submit_first(mixed(loopback, gke), locks=tmp_path)
    assert "exceeded quota" in sent.tried[0].why and gke.jobsets() == []
    loopback.service.faults.no_quota, gke.faults.quota = {"us-central1"}, False
    loopback.service.jobs.clear()
    sent = submission.submit_first(mixed(loopback, gke, "vertex"), locks=tmp_path / "elsewhere")
    assert sent.created and sent.place is not None and sent.place.on == "kubernetes"
    assert len(gke.jobsets()) == 1 and not loopback.service.jobs


# --- the lease ------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "bucket"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Lease:
    if request.param == "folder":
        return FolderLease(tmp_path / "job")
    request.getfixturevalue("bucket")
    return BucketLease(
        VertexAI(Service(emulator.PROJECT, "us-central1")).storage, "gs://my-bucket/jobs/cats"
    )


def test_one_of_many_takes_the_lease(held: Lease) -> None:
    assert held.read() is None
    claims = [Claim("k", 1, holder=str(n)) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda claim: held.take(None, claim), claims))
    assert sum(one is not None for one in taken) == 1
    mine = next(one for one in taken if one is not None)
    found = held.read()
    assert found is not None and found.claim == mine.claim
    named = held.take(mine, Claim("k", 1, "customJobs/1"))
    assert named is not None and held.take(mine, Claim("k", 1)) is None  # an old version
    held.drop(mine)
    assert held.read() is not None
    held.drop(named)
    assert held.read() is None


def test_a_lease_whose_holder_died_is_taken_over(
    loopback: emulator.Loopback, bucket: storage.Storage, clock: list[float], tmp_path: Path
) -> None:
    one = ways(loopback)[0]
    found = one.place.lease(one.request)
    assert found is not None
    found.take(None, Claim(one.place.key(one.request), 1))
    assert send(loopback, tmp_path).created
    assert sum(clock) >= lease.EXPIRY


def test_a_file_of_something_else_is_replaced(tmp_path: Path) -> None:
    (tmp_path / lease.FILE).write_text("not ours")
    found = FolderLease(tmp_path).read()
    assert found is not None and found.claim is None
    assert FolderLease(tmp_path).take(found, Claim("k", 1)) is not None


def test_a_bucket_that_is_not_there_is_one_line(bucket: storage.Storage) -> None:
    client = VertexAI(Service(emulator.PROJECT, "us-central1")).storage
    with pytest.raises(OutsideError, match=r"gs://other/jobs/submission.json: not found") as caught:
        BucketLease(client, "gs://other/jobs").take(None, Claim("k", 1))
    assert "another one in job_dir" in caught.value.fix


# --- on the command line --------------------------------------------------------------------------


CHEAPEST = (
    BASE
    + "job_dir: gs://my-bucket-{region}/jobs/{job}\narguments: {steps: 100}\n"
    + "cheapest: {of: [V100, T4], regions: [us-central1, europe], strategies: [spot, standard]}\n"
)


@pytest.fixture
def cats(here: Path, emulated: emulator.Loopback) -> emulator.Loopback:  # noqa: F811
    (here / "jobs" / "cats.yaml").write_text(CHEAPEST)
    return emulated


def test_the_order_is_shown_with_its_prices_and_nothing_is_sent(
    run: Run,  # noqa: F811
    cats: emulator.Loopback,
) -> None:
    code, out, err = run("job", "submit", "cats", "--dry-run")
    assert code == 0, err
    assert [line.split(" of ")[0] for line in out.splitlines() if line[0].isdigit()] == [
        "1. n1-standard-8 with 1 x V100, spot, Vertex AI, europe-west4",
        "2. n1-standard-8 with 1 x V100, spot, Vertex AI, us-central1",
        "3. n1-standard-8 with 1 x V100, standard, Vertex AI, us-central1",
        "4. n1-standard-8 with 1 x V100, standard, Vertex AI, europe-west4",
    ]
    assert out.splitlines()[0].endswith(f"USD {(0.22104 + 0.722) * 1.15:.4f} an hour")
    assert "T4 in us-central1, spot is left out: " in out and not cats.service.jobs
    code, out, err = run("job", "cost", "cats", "--for", "1h", "--json")
    assert code == 0 and "1. n1-standard-8 with 1 x V100, spot, Vertex AI, europe-west4" in err
    assert "cats: 1 h" in err


def test_what_was_tried_is_told_and_the_job_is_found_where_it_is(
    run: Run,  # noqa: F811
    cats: emulator.Loopback,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "LOOK", 0.01)
    cats.service.faults.no_quota = {"europe-west4"}
    code, _, err = run("job", "submit", "cats")
    assert code == 0 and "no room: n1-standard-8 with 1 x V100, spot" in err
    cats.settle()
    (job,) = cats.service.jobs.values()
    assert "/locations/us-central1/" in job.name
    folder = job.job_spec.base_output_directory.output_uri_prefix
    assert folder.startswith("gs://my-bucket-us-central1/jobs/cats-")
    code, _, err = run("job", "status", "cats")
    assert code == 0 and job.name in err
    code, out, err = run("job", "why", "cats", "--json")
    assert code == 0 and "Of 4 ways to run it, tried in this order:" in err
    assert "exceed quota limits" in err and '"search"' in out
    code, _, err = run("job", "submit", "cats", "--region", "us-central1")
    assert code == 2 and "cats names its regions itself" in err


def test_no_room_at_all_is_told_by_why(
    run: Run,  # noqa: F811
    cats: emulator.Loopback,
) -> None:
    cats.service.faults.no_quota = {"europe-west4", "us-central1"}
    code, _, err = run("job", "submit", "cats")
    assert code == 3 and "none of 4 ways to run it has room" in err
    code, _, err = run("job", "why", "cats")
    assert code == 0 and err.count("no room: ") == 4
