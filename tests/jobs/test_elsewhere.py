"""Jobs of other services as people have them: no accelerator is lost, and nothing goes unnamed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs.convert import Converted, convert
from tests.jobs.jobfiles import TARGETS, job

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 4
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
      containers:
      - name: t
        image: ghcr.io/acme/train:2
        command: [python, t.py]
        resources: {limits: {nvidia.com/gpu: 2}}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: headless}\n"
POOL = "machine-type=n1-standard-8,accelerator-type=NVIDIA_TESLA_T4,accelerator-count=2,"


def of_file(folder: Path, text: str, name: str = "job.yaml", **more: str) -> Converted:
    (folder / name).write_text(text)
    return convert(folder / name, targets=TARGETS, **more)


def counts(result: Converted) -> list[int]:
    return [pool.count for pool in job(result.text).pools]


def of_command(command: str) -> Converted:
    return convert(None, shlex.split(command), targets=TARGETS)


@pytest.mark.parametrize(
    "resources",
    [
        "limits: {nvidia.com/mig-1g.5gb: 1}",
        "limits: {habana.ai/gaudi: 8}",
        "requests: {aws.amazon.com/neuron: 16}",
        "claims: [{name: card}]",
    ],
)
def test_a_device_that_is_not_known_is_refused_and_not_left_out(
    resources: str, tmp_path: Path
) -> None:
    text = JOB.replace("limits: {nvidia.com/gpu: 2}", resources)
    with pytest.raises(InputError, match="names an accelerator that is not known here") as caught:
        of_file(tmp_path, text)
    assert f"job.yaml:13: spec.template.spec.containers.0.resources.{resources[:6]}" in str(
        caught.value
    )


def test_a_job_beside_other_documents_is_taken_with_its_own_lines(tmp_path: Path) -> None:
    result = of_file(tmp_path, f"# a comment\n---\n{SERVICE}---\n{JOB}---\n")
    assert job(result.text).accelerators == "2 x L4"
    assert result.left_out == (
        f"{tmp_path}/job.yaml:2: Service: it is another document of the file",
    )
    assert any("job.yaml:16: spec.template.spec.containers.0" in line for line in result.changes)
    for several in (f"{JOB}---\n{JOB}", "name: a\n---\nrun: x\n---\nrun: y\n"):
        with pytest.raises(InputError, match=r"job\.yaml: 2 jobs") as caught:
            of_file(tmp_path, several)
        assert caught.value.fix == "write each into a file of its own"
    with pytest.raises(InputError, match="no jobs"):
        of_file(tmp_path, f"{SERVICE}---\n- a\n")


def test_what_finds_the_other_replicas_is_not_taken_from_an_old_job(tmp_path: Path) -> None:
    env = "env: [{name: MASTER_ADDR, value: train-0.train}, {name: WANDB_MODE, value: offline}]"
    result = of_file(tmp_path, JOB.replace("        command:", f"        {env}\n        command:"))
    assert job(result.text).environment == {"WANDB_MODE": "offline"}
    (line,) = result.left_out
    assert "job.yaml:12: spec.template.spec.containers.0.env.MASTER_ADDR: each replica" in line


def test_the_dicts_of_vertex_ai_s_python_client_are_read(tmp_path: Path) -> None:
    pool = """{"machine_spec": {"machine_type": "a2-highgpu-4g", "accelerator_count": 4,
      "accelerator_type": "NVIDIA_TESLA_A100"}, "replica_count": 1,
      "container_spec": {"image_uri": "gcr.io/p/i:1", "args": ["--epochs", 3]}}"""
    for text in (f"[{pool}]", f'{{"job_spec": {{"worker_pool_specs": [{pool}]}}}}'):
        now = job(of_file(tmp_path, text, "pools.json").text)
        assert (now.machine, now.accelerators) == ("a2-highgpu-4g", "4 x A100-40GB")
        assert (now.image, now.arguments) == ("gcr.io/p/i:1", ("--epochs", "3"))


def test_a_python_package_s_arguments_and_variables_are_the_program_s(tmp_path: Path) -> None:
    result = of_file(
        tmp_path,
        "workerPoolSpecs:\n- machineSpec: {machineType: n1-standard-8, acceleratorCount: 1,\n"
        "    acceleratorType: NVIDIA_TESLA_V100}\n  pythonPackageSpec:\n"
        "    pythonModule: trainer.task\n    args: [--epochs=5]\n"
        "    env: [{name: WANDB_MODE, value: offline}]\n"
        "scheduling: {strategy: FLEX_START, maxWaitDuration: 3600s}\n",
    )
    now = job(result.text)
    assert (now.arguments, now.environment) == (("--epochs=5",), {"WANDB_MODE": "offline"})
    assert now.scheduling.max_wait == 3600
    assert [line.split(": ")[1].split(".")[-1] for line in result.left_out] == ["pythonModule"]


def test_what_only_skypilot_sets_or_asks_for_is_named(tmp_path: Path) -> None:
    result = of_file(
        tmp_path,
        "resources: {accelerators: 'V100:4'}\nenvs: {EPOCHS: 3, TOKEN: null}\n"
        "secrets: {HF_TOKEN: null}\nrun: torchrun --nnodes=$SKYPILOT_NUM_NODES train.py\n",
    )
    assert job(result.text).environment == {"EPOCHS": "3"}
    named = [line.split(": ")[1] for line in result.left_out]
    assert named == ["envs.TOKEN", "run.$SKYPILOT_NUM_NODES", "secrets.HF_TOKEN"]


def test_an_accelerator_that_is_not_offered_is_named_beside_what_stands_for_it() -> None:
    for command, what in (
        ("xpk workload create --tpu-type=v5p-128 --docker-image=a/b:1", "TPU-v5p is not offered"),
        (
            "gcloud ai custom-jobs create --worker-pool-spec=machine-type=n1-standard-8,"
            "accelerator-type=NVIDIA_TESLA_K80,accelerator-count=1,container-image-uri=a/b:1",
            "K80 is no longer offered",
        ),
    ):
        assert any(what in line for line in of_command(command).changes), command


def test_the_flags_of_gcloud_are_read_as_it_reads_them() -> None:
    result = of_command("gcloud ml-engine jobs submit training x --scale-tier basic-gpu")
    assert job(result.text).accelerators == "1 x T4"
    create = "gcloud alpha ai custom-jobs create"
    result = of_command(f"{create} --switch --worker-pool-spec={POOL}container-image-uri=a/b:1")
    assert job(result.text).accelerators == "2 x T4"
    assert result.left_out == ("--switch: not known",)
    result = of_command(f"{create} --worker-pool-spec={POOL}local-package-path=.,script=t.py")
    assert [line.partition(": ")[0] for line in result.left_out] == [
        "--worker-pool-spec local-package-path",
        "--worker-pool-spec script",
    ]


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("gcloud batch jobs submit x --config job.json", "gcloud batch jobs submit x: sends no"),
        ("gcloud compute instances create x --machine-type a2-highgpu-1g", "sends no training job"),
        ("xpk cluster create --tpu-type=v5litepod-16", "xpk cluster create: sends no training job"),
        ("xpk workload create-pathways --tpu-type=v5litepod-16", "sends no training job"),
        ("docker run --gpus all acme/train python t.py", "docker: no job is written so"),
        ("sky launch --gpus H100:8 -- python t.py", "sky: no job is written so"),
    ],
)
def test_another_command_is_refused_with_what_is_read(command: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        of_command(command)
    assert (
        "Kubernetes (Job, CronJob, Pod, JobSet, PyTorchJob, TFJob, JAXJob, MPIJob, T"
        in caught.value.fix
    )


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}", "nodeSelector"),
        ("runtimeClassName: nvidia", "runtimeClassName"),
    ],
)
def test_a_gpu_that_no_resource_counts_is_not_left_out(
    spec: str, what: str, tmp_path: Path
) -> None:
    text = JOB.replace("        resources: {limits: {nvidia.com/gpu: 2}}\n", "")
    text = text.replace("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}", spec)
    with pytest.raises(InputError, match=f"job.yaml:8: spec.template.spec.{what}: names an acc"):
        of_file(tmp_path, text)


def test_the_replicas_of_the_only_pool_are_kept(tmp_path: Path) -> None:
    pool = "{machineSpec: {machineType: n1-standard-8}, replicaCount: 4,\n"
    pool += " containerSpec: {imageUri: a/b}}"
    result = of_file(tmp_path, f"workerPoolSpecs: [{pool}]\n")
    assert counts(result) == [1, 3] and result.left_out == ()
    create = f"gcloud ai custom-jobs create --worker-pool-spec={POOL}replica-count=4,"
    assert counts(of_command(f"{create}container-image-uri=a/b")) == [1, 3]
    result = of_file(tmp_path, f"workerPoolSpecs: [{pool}, {pool}]\n")
    assert counts(result) == [1, 4]
    assert "workerPoolSpecs.0.replicaCount" in result.left_out[0], "there is one chief"


def test_a_tpu_s_topology_is_taken(tmp_path: Path) -> None:
    machine = "{machineType: ct5lp-hightpu-4t, tpuTopology: 2x4}"
    text = f"workerPoolSpecs: [{{machineSpec: {machine}, containerSpec: {{imageUri: a/b}}}}]\n"
    assert job(of_file(tmp_path, text).text).topology == "2x4"
    create = "gcloud ai custom-jobs create --worker-pool-spec=machine-type=ct5lp-hightpu-4t"
    now = job(of_command(f"{create},tpu-topology=2x4,container-image-uri=a/b").text)
    assert (now.machine, now.topology) == ("ct5lp-hightpu-4t", "2x4")


def test_skypilot_s_place_is_a_region_in_google_s_cloud_alone(tmp_path: Path) -> None:
    text = "resources: {infra: INFRA, accelerators: 'T4:1', image_id: {us-east1: docker:a/b:1}}\n"
    text += "run: python t.py\n"
    now = job(of_file(tmp_path, text.replace("INFRA", "gcp/us-east1/us-east1-b")).text)
    assert (now.region, now.image) == ("us-east1", "a/b:1")
    result = of_file(tmp_path, text.replace("INFRA", "k8s/my-cluster"))
    assert job(result.text).region is None
    assert [line.split(": ")[1] for line in result.left_out] == ["resources.infra"]


LABEL = "{cloud.google.com/gke-accelerator: nvidia-l4}"
TRAINER = (
    "{name: t, image: a/b:1, command: [python, t.py], resources: {limits: {nvidia.com/gpu: 2}}}"
)
PROXY = "{name: proxy, image: c/d:1, command: [proxy], env: [{name: A, value: b}]}"
POD = f"template: {{spec: {{priorityClassName: high, nodeSelector: {LABEL}, containers: [{PROXY}, "
POD += f"{TRAINER}]}}}}"


def of_kind(folder: Path, kind: str, spec: str) -> Converted:
    return of_file(
        folder, f"apiVersion: {kind.replace(' ', chr(10) + 'kind: ')}\nspec: {{{spec}}}\n"
    )


@pytest.mark.parametrize(
    ("kind", "spec", "replicas"),
    [
        ("batch/v1 Job", POD, [1]),
        ("batch/v1 Job", POD.replace("containers", f"initContainers: [{PROXY}], containers"), [1]),
        (
            "kubeflow.org/v1 PyTorchJob",
            f"pytorchReplicaSpecs: {{Worker: {{replicas: 3, {POD}}}}}",
            [1, 2],
        ),
        ("kubeflow.org/v1 JAXJob", f"jaxReplicaSpecs: {{Worker: {{replicas: 2, {POD}}}}}", [1, 1]),
        ("batch.volcano.sh/v1alpha1 Job", f"tasks: [{{replicas: 3, name: a, {POD}}}]", [1, 2]),
        (
            "batch.volcano.sh/v1alpha1 Job",
            f"tasks: [{{replicas: 3, name: worker, {POD}}}, {{name: master, {POD}}}]",
            [1, 3],
        ),
        (
            "jobset.x-k8s.io/v1alpha2 JobSet",
            f"replicatedJobs: [{{name: workers, template: {{spec: {{parallelism: 4, {POD}}}}}}}, "
            f"{{name: driver, template: {{spec: {{{POD}}}}}}}]",
            [1, 4],
        ),
    ],
)
def test_the_container_with_the_accelerators_is_the_program_s(
    kind: str, spec: str, replicas: list[int], tmp_path: Path
) -> None:
    result = of_kind(tmp_path, kind, spec)
    now = job(result.text)
    assert (now.image, now.command, now.accelerators) == ("a/b:1", ("python", "t.py"), "2 x L4")
    assert counts(result) == replicas and now.environment == {}
    assert any("containers.0.image: not known" in line for line in result.left_out)
    assert not any("priorityClassName" in line for line in result.left_out), "roles are alike"


def test_of_containers_without_devices_the_operator_s_name_tells_the_program_s(
    tmp_path: Path,
) -> None:
    pod = f"template: {{spec: {{containers: [{PROXY}, {{name: pytorch, image: a/b:1}}]}}}}"
    result = of_kind(
        tmp_path, "kubeflow.org/v1 PyTorchJob", f"pytorchReplicaSpecs: {{Master: {{{pod}}}}}"
    )
    assert job(result.text).image == "a/b:1"


@pytest.mark.parametrize(
    "labels",
    [
        "{cloud.google.com/gke-accelerator: nvidia-l4, "
        "cloud.google.com/gke-gpu-partition-size: 1g.5gb}",
        "{cloud.google.com/gke-accelerator: nvidia-l4, "
        "cloud.google.com/gke-gpu-sharing-strategy: time-sharing}",
        "{nvidia.com/gpu.product: NVIDIA-L4-SHARED}",
        "{nvidia.com/gpu.product: NVIDIA-L4-MIG-1g.5gb}",
    ],
)
def test_a_share_of_an_accelerator_is_named_and_the_job_gets_whole_ones(
    labels: str, tmp_path: Path
) -> None:
    result = of_kind(tmp_path, "batch/v1 Job", POD.replace(LABEL, labels))
    assert job(result.text).accelerators == "2 x L4" and "node_selector" not in result.text
    assert any(line.endswith(": a job has whole accelerators") for line in result.left_out)


@pytest.mark.parametrize(
    ("kind", "spec", "what"),
    [
        ("batch/v1 Job", f"parallelism: $NODES, {POD}", "spec.parallelism: '.NODES' is no number"),
        ("batch/v1 Job", POD.replace("gpu: 2", "gpu: <N>"), "'<N>' is no number"),
        ("batch/v1 Job", POD.replace("gpu: 2", "gpu: '0.5'"), "'0.5' is no number"),
        ("a.example/v1 Job", POD, r"Job of Kubernetes \(a.example/v1\); it is not converted"),
        (
            "batch.volcano.sh/v1alpha1 Job",
            f"tasks: [{{name: mpimaster, {POD}}}, {{name: mpiworker, {POD}}}]",
            "is not converted",
        ),
        (
            "kubeflow.org/v1 PyTorchJob",
            f"pytorchReplicaSpecs: {{Master: {{{POD}}}, "
            f"Worker: {{{POD.replace('nvidia.com/gpu', 'nvidia.com/mig-1g.5gb')}}}}}",
            "Worker.template.spec.containers.1.resources: nvidia.com/mig-1g.5gb names an accel",
        ),
    ],
)
def test_what_would_lose_an_accelerator_or_a_replica_is_refused(
    kind: str, spec: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=what):
        of_kind(tmp_path, kind, spec)


def test_a_job_that_asks_for_no_gpu_has_none(tmp_path: Path) -> None:
    result = of_kind(tmp_path, "batch/v1 Job", POD.replace("gpu: 2", "gpu: 0").replace(LABEL, "{}"))
    assert job(result.text).accelerators is None and job(result.text).image == "a/b:1"


def left(result: Converted) -> dict[str, str]:
    """What is not taken over: where it stood, without the file and the line, and why."""
    return dict(line.split(": ", 2)[1:] for line in result.left_out)


MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: a, labels: {kueue.x-k8s.io/queue-name: team}}
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{name: l, image: a/b:1, COMMAND}]}}
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
          containers:
          - {name: w, image: a/b:1, command: [/usr/sbin/sshd, -D],
             resources: {limits: {nvidia.com/gpu: 8}}}
"""
LAUNCHES = (
    "command: [/opt/bin/mpirun, -np, 16, -x, NCCL_DEBUG=INFO, -x, PATH, python3, t.py, -n, 3]"
)


@pytest.mark.parametrize("version", ["v2beta1", "v1"])
def test_the_workers_of_an_mpijob_are_the_replicas_of_its_launcher_s_program(
    version: str, tmp_path: Path
) -> None:
    result = of_file(tmp_path, MPI.replace("COMMAND", LAUNCHES).replace("v2beta1", version))
    now, named = job(result.text), left(result)
    assert (now.accelerators, counts(result)) == ("8 x H100-80GB", [1, 1])
    assert now.command == ("python3", "t.py", "-n", "3") and now.image == "a/b:1"
    assert now.environment == {"NCCL_DEBUG": "INFO"}
    pods = "spec.mpiReplicaSpecs.{}.template.spec.containers.0.command{}"
    assert named.keys() == {
        *("spec.slotsPerWorker", "metadata.labels.kueue.x-k8s.io/queue-name"),
        *(pods.format("Launcher", "./opt/bin/mpirun -np 16"), pods.format("Worker", "")),
    }
    assert "--queue" in named["metadata.labels.kueue.x-k8s.io/queue-name"]


def test_what_an_mpijob_s_launcher_has_is_not_lost(tmp_path: Path) -> None:
    text = MPI.replace("COMMAND", f"{LAUNCHES}, resources: {{limits: {{nvidia.com/gpu: 8}}}}")
    result = of_file(tmp_path, text)
    gpus = "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.resources.limits"
    assert left(result)[f"{gpus}.nvidia.com/gpu"] == "the launcher's, no replica is one"
    works = text.replace("  slotsPerWorker: 8", "  runLauncherAsWorker: true")
    result = of_file(tmp_path, works, accelerator="H100")
    assert counts(result) == [1, 2] and job(result.text).accelerators == "8 x H100-80GB"
    script = (
        "command: [bash, -c, 'source e && mpirun -np 16 python t.py'], env: [{name: A, value: b}]"
    )
    result = of_file(tmp_path, MPI.replace("COMMAND", script))
    assert (job(result.text).command or ())[:2] == ("bash", "-c")
    assert job(result.text).environment == {"A": "b"}
    assert any(why.startswith("each replica would start all") for why in left(result).values())


def test_a_pod_and_a_cronjob_are_jobs_and_their_schedule_and_runs_are_named(tmp_path: Path) -> None:
    pod = POD.removeprefix("template: {spec: {").removesuffix("}}")
    result = of_kind(tmp_path, "v1 Pod", f"activeDeadlineSeconds: 3600, {pod}")
    now = job(result.text)
    assert (now.accelerators, now.image, now.scheduling.timeout) == ("2 x L4", "a/b:1", 3600)
    spec = f"schedule: 0 3 * * *, jobTemplate: {{spec: {{parallelism: 2, completions: 6, {POD}}}}}"
    result = of_kind(tmp_path, "batch/v1 CronJob", spec)
    assert counts(result) == [1, 1] and job(result.text).accelerators == "2 x L4"
    named = left(result)
    assert named["spec.schedule"] == "a job runs once, what submits it has the schedule"
    assert named["spec.jobTemplate.spec.completions"] == "each replica runs once"
    once = of_kind(tmp_path, "batch/v1 CronJob", spec.replace("6", "2"))
    assert "spec.jobTemplate.spec.completions" not in left(once)


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_a_job_of_ray_is_refused_with_what_to_write(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no job here starts Ray") as caught:
        of_kind(tmp_path, f"ray.io/v1 {kind}", "entrypoint: python t.py")
    assert "the entrypoint as command" in caught.value.fix


def test_one_of_several_jobs_is_named(tmp_path: Path) -> None:
    second = JOB.replace("train}", "second}").replace("gpu: 2", "gpu: 1")
    items = "".join(
        f"- {part.replace(chr(10), chr(10) + '  ').rstrip()}\n" for part in (JOB, second)
    )
    for text in (f"{JOB}---\n{second}", f"apiVersion: v1\nkind: List\nitems:\n{items}"):
        with pytest.raises(InputError, match=r"2 jobs: train in line \d, second in") as caught:
            of_file(tmp_path, text)
        assert caught.value.fix == "give --job with the name of one"
        result = convert(tmp_path / "job.yaml", name="second", targets=TARGETS)
        line = text[: text.index("gpu: 1")].count("\n") - 2
        assert job(result.text).accelerators == "1 x L4"
        assert result.changes[0].startswith(f"{tmp_path}/job.yaml:{line}: spec.template.spec.c")
        with pytest.raises(InputError, match="no jobs called other: train in line"):
            convert(tmp_path / "job.yaml", name="other", targets=TARGETS)


KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB_API_KEY", KEY), ("DB_PASSWORD", "hunter2!"), ("REMOTE", "https://me:it@a.example/b")],
)
def test_a_secret_is_not_written_into_the_new_file(name: str, value: str, tmp_path: Path) -> None:
    env = f"env: [{{name: {name}, value: '{value}'}}, {{name: EPOCHS, value: 3}}]"
    result = of_file(tmp_path, JOB.replace("        command:", f"        {env}\n        command:"))
    assert job(result.text).environment == {"EPOCHS": "3"}
    assert value not in "\n".join((result.text, *result.left_out, *result.changes))
    (why,) = left(result).values()
    assert why == "looks like a secret, write NAME: {secret: NAME} (docs/jobs.md)"
    result = of_command(f"xpk workload create --device-type=h100-80gb-8 --env {name}={value}")
    assert result.left_out == (f"--env {name}: {why}",) and value not in result.text


def test_a_secret_in_a_command_is_refused(tmp_path: Path) -> None:
    script = f"command: [bash, -c, 'export WANDB_API_KEY={KEY} && python t.py']"
    with pytest.raises(InputError, match="stands in the command or its arguments") as caught:
        of_file(tmp_path, JOB.replace("command: [python, t.py]", script))
    assert KEY not in str(caught.value) and "{secret: NAME}" in caught.value.fix


def test_the_variables_of_another_role_are_named(tmp_path: Path) -> None:
    pods = ("[{name: A, value: b}]", "[{name: A, value: b}, {name: C, value: d}]")
    roles = [POD.replace("name: t,", f"name: t, env: {each},") for each in pods]
    spec = f"pytorchReplicaSpecs: {{Master: {{{roles[0]}}}, Worker: {{{roles[1]}}}}}"
    result = of_kind(tmp_path, "kubeflow.org/v1 PyTorchJob", spec)
    named = [was for was in left(result) if "containers.1.env" in was]
    alone = of_kind(tmp_path, "kubeflow.org/v1 PyTorchJob", spec.replace(pods[0], "[]"))
    assert sum("containers.1.env" in was for was in left(alone)) == 2
    assert named == ["spec.pytorchReplicaSpecs.Worker.template.spec.containers.1.env.C"]


def test_memory_and_volumes_are_those_of_the_program_beside_another_container(
    tmp_path: Path,
) -> None:
    sidecar = PROXY.replace("name: proxy,", "name: proxy, resources: {limits: {memory: 1Gi}},")
    pod = POD.replace(PROXY, sidecar).replace(
        "{nvidia.com/gpu: 2}", "{nvidia.com/gpu: 2, memory: 9Gi}"
    )
    assert "memory: 9Gi" in of_kind(tmp_path, "batch/v1 Job", pod).text
