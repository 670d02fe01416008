"""Jobs of AI Platform as jobs of today: each field is taken over or named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs.backends.kubernetes import section as kubernetes
from builder.jobs.backends.vertex import section
from builder.jobs.convert import Converted, convert
from builder.jobs.description.job import Job
from tests.jobs import jobfiles
from tests.jobs.jobfiles import TARGETS

POST = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig:
    acceleratorConfig:
      count: 2
      type: NVIDIA_TESLA_V100
"""
"""The config.yaml of the blog post with which this project began."""
LARGE = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m_v100
  workerType: complex_model_m_v100
  workerCount: "9"
  parameterServerType: large_model
  parameterServerCount: "3"
  evaluatorType: standard
  evaluatorCount: "1"
  region: us-central1
  jobDir: gs://my-bucket/job
  args: [--epochs, "10"]
  runtimeVersion: "1.15"
  pythonModule: trainer.task
  packageUris: ['gs://my-bucket/p.tar.gz']
  serviceAccount: a@b.iam.gserviceaccount.com
  network: projects/123/global/networks/vpc
  scheduling: {maxRunningTime: 7200s, maxWaitTime: 3600s}
  hyperparameters:
    goal: MAXIMIZE
    hyperparameterMetricTag: accuracy
    maxTrials: 30
    maxParallelTrials: 3
    enableTrialEarlyStopping: true
    algorithm: RANDOM_SEARCH
    params:
    - {parameterName: rate, type: DOUBLE, minValue: 0.001, maxValue: 0.1, scaleType: UNIT_LOG_SCALE}
    - {parameterName: layers, type: INTEGER, minValue: 1, maxValue: 5}
    - {parameterName: same, type: DOUBLE, minValue: 5, maxValue: 5}
    - {parameterName: batch, type: DISCRETE, discreteValues: [16, 32]}
    - {parameterName: optimizer, type: CATEGORICAL, categoricalValues: [adam, sgd]}
labels: {team: vision}
"""
TPU = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig: {imageUri: gcr.io/p/i, containerArgs: [--epochs=3]}
  workerType: cloud_tpu
  workerCount: 1
  workerConfig: {acceleratorConfig: {type: TPU_V2, count: 8}, tpuTfVersion: "2.1"}
  region: us-central1
"""
CUSTOM = "trainingInput: {scaleTier: CUSTOM"


def converted(folder: Path, text: str, *words: str, **more: str) -> Converted:
    """The job of a config.yaml with this text."""
    (folder / "config.yaml").write_text(text)
    return convert(folder / "config.yaml", words, targets=TARGETS, **more)  # type: ignore[arg-type]


def job(result: Converted) -> Job:
    return jobfiles.job(result.text)


def pools(result: Converted) -> dict[str, tuple[int, str, int]]:
    return {pool.role: (pool.count, pool.machine, pool.accelerators) for pool in job(result).pools}


def test_the_posts_config(tmp_path: Path) -> None:
    result = converted(tmp_path, POST, "--epochs", "10", region="asia-east1")
    now = job(result)
    assert (now.image, now.region, now.arguments) == ("v100", "asia-east1", ("--epochs", "10"))
    assert pools(result) == {"chief": (1, "n1-standard-8", 2)}
    assert result.changes == ("the old job named no image: v100 is for V100",)
    assert result.left_out == ()
    jobfiles.ready(result.text)  # every check of a job that is sent


def test_everything_of_a_large_job_is_taken_over_or_named_with_its_line(tmp_path: Path) -> None:
    result = converted(tmp_path, LARGE.replace("labels:", "colour: red\nlabels:"))
    lines = {line.split(": ")[1].removeprefix("trainingInput."): line for line in result.left_out}
    assert set(lines) == {
        *("runtimeVersion", "pythonModule", "packageUris", "scheduling.maxWaitTime", "colour"),
    }
    assert "config.yaml:13: " in lines["runtimeVersion"] and "image" in lines["runtimeVersion"]
    assert lines["colour"].endswith("colour: not known")
    assert all(f"# not taken over: {line}" in result.text for line in result.left_out)
    now = job(result)
    assert pools(result) == {
        "chief": (1, "n1-standard-16", 4),
        "worker": (9, "n1-standard-16", 4),
        "ps": (3, "n1-highmem-8", 0),
        "evaluator": (1, "n1-standard-4", 0),
    }
    assert (now.job_dir, now.pass_job_dir) == ("gs://my-bucket/job", True)
    assert (now.arguments, now.scheduling.timeout) == (("--epochs", "10"), 7200)
    assert (now.labels, now.service_account) == ({"team": "vision"}, "a@b.iam.gserviceaccount.com")
    study = now.study
    assert study is not None
    assert (study.metric, study.goal, study.trials) == ("accuracy", "maximize", 30)
    assert (study.parallel, study.algorithm, study.early_stopping) == (3, "random", "curve")
    kinds = {name: parameter.kind for name, parameter in study.parameters.items()}
    assert list(kinds.values()) == ["double", "integer", "discrete", "discrete", "categorical"]
    assert study.parameters["same"].values == ("5",)  # a range of one value is that value
    assert study.parameters["rate"].scale == "log"


def test_scale_tiers_and_machines_that_ended_become_those_of_today(tmp_path: Path) -> None:
    cpu = (4, "n1-standard-8", 0)
    three = {"chief": (1, "n1-standard-8", 0), "worker": cpu, "ps": (3, "n1-standard-4", 0)}
    for tier, expected in (
        ("BASIC_TPU", {"chief": (1, "cloud-tpu", 8)}),
        ("STANDARD_1", three),
    ):
        text = f"trainingInput: {{scaleTier: {tier}, workerType: large_model}}\n"
        result = converted(tmp_path, text)
        assert pools(result) == expected
        assert any("workerType" in line and "its own machines" in line for line in result.changes)
    result = converted(tmp_path, f"{CUSTOM}, masterType: complex_model_l_gpu}}\n")
    assert job(result).accelerators == "4 x T4"
    assert any("complex_model_l_gpu" in line and "nearest" in line for line in result.changes)


def test_a_tpu_becomes_the_chief(tmp_path: Path) -> None:
    result = converted(tmp_path, TPU)
    assert pools(result) == {"chief": (1, "cloud-tpu", 8)}
    assert job(result).arguments == ("--epochs=3",)
    assert any("n1-highcpu-16 is gone" in line for line in result.changes)
    assert [line.split(": ")[1] for line in result.left_out] == [
        "trainingInput.workerConfig.tpuTfVersion"
    ]
    jobfiles.ready(result.text, "tpu")


def test_programs_and_disks_of_single_roles_are_named(tmp_path: Path) -> None:
    text = (
        f"{CUSTOM}, masterType: n1-standard-4, workerType: n1-standard-4, workerCount: 2,\n"
        "  masterConfig: {imageUri: 'gcr.io/p/i:1', containerCommand: [run], containerArgs: [-x],\n"
        "    diskConfig: {bootDiskType: pd-ssd, bootDiskSizeGb: 200}},\n"
        "  workerConfig: {imageUri: 'gcr.io/p/i:1', containerArgs: [-y]}}\n"
    )
    result = converted(tmp_path, text)
    now = job(result)
    assert (now.image, now.command, now.arguments) == ("gcr.io/p/i:1", ("run",), ("-x",))
    *disks, line = result.left_out
    assert "workerConfig.containerArgs: each replica runs the chief's program" in line
    assert len(disks) == 2 and all("write disk with a type and size_gb" in each for each in disks)
    assert job(converted(tmp_path, text, image="cpu")).image == "cpu"


# --- the command ----------------------------------------------------------------------------------


def test_a_gcloud_command_alone_and_over_its_file(tmp_path: Path) -> None:
    command = "gcloud ai-platform jobs submit training cats_1 --scale-tier CUSTOM "
    command += "--master-machine-type=n1-standard-8 --enable-web-access --stream-logs "
    command += "--master-accelerator count=2,type=nvidia-tesla-v100 --region us-central1 "
    command += "--worker-machine-type n1-standard-8 --worker-count 3 --labels a=b,c=d "
    command += "--job-dir gs://my-bucket/job --runtime-version 2.11 --colour red -- --epochs 3"
    result = convert(None, command.split(), targets=TARGETS)
    now = job(result)
    assert pools(result) == {"chief": (1, "n1-standard-8", 2), "worker": (3, "n1-standard-8", 0)}
    assert section.of(now).web_access and now.arguments == ("--epochs", "3")
    assert (now.labels, now.image) == ({"a": "b", "c": "d"}, "v100")
    assert [line.partition(":")[0] for line in result.left_out] == [
        *("--stream-logs", "--runtime-version", "--colour"),
    ]
    over = converted(tmp_path, POST, *["gcloud", "--master-machine-type", "n1-standard-16"])
    assert pools(over) == {"chief": (1, "n1-standard-16", 2)}
    (tmp_path / "other.yaml").write_text(POST)
    named = convert(None, ["gcloud", "--config", str(tmp_path / "other.yaml")], targets=TARGETS)
    assert pools(named) == {"chief": (1, "n1-standard-8", 2)}


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        (
            "trainingInput:\n  scaleTier: BASICS\n",
            "config.yaml:2: trainingInput.scaleTier",
            "BASIC",
        ),
        ("trainingInput:\n  scaleTier: CUSTOM\n", "needs masterType", "n1-standard-8"),
        (f"{CUSTOM}, masterType: n1-standard-1}}\n", "has no n1-standard-1", "n1-standard-4"),
        (f"{CUSTOM}, masterType: n1-standard-4, workerCount: 2}}\n", "needs workerType", "add"),
        (
            f"{CUSTOM}, masterType: n1-standard-4,\n workerType: large_model, workerCount: two}}\n",
            "config.yaml:2: trainingInput.workerCount: 'two' is no number",
            "write 2",
        ),
        (
            f"{CUSTOM}, masterType: n1-standard-4,\n"
            "  masterConfig: {acceleratorConfig: {count: 1, type: NVIDIA_TESLA_V10}}}\n",
            "no accelerator is called",
            "V100",
        ),
        (LARGE.replace("maxTrials: 30", "maxTrials: 3000"), "study.trials: expected at most", "20"),
        (LARGE.replace("gs://my-bucket/job", "s3://b/job"), "job_dir", "gs://"),
        ("[]\n", "no job is written so", "SkyPilot or xpk"),
        ("a: [\n", "not YAML", ""),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, problem: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        converted(tmp_path, text)
    assert problem in caught.value.message and "config.yaml" in caught.value.message
    assert fix in caught.value.fix


def test_a_wrong_flag_and_no_image_that_fits(tmp_path: Path) -> None:
    for words, problem in (
        ("gcloud --master-accelerator nvidia-tesla-v100", "not what gcloud took"),
        ("gcloud --region", "--region: has no value"),
    ):
        with pytest.raises(InputError, match=problem):
            convert(None, words.split(), targets=TARGETS)
    (tmp_path / "config.yaml").write_text(POST)
    with pytest.raises(InputError, match="no target of the project is for V100") as caught:
        convert(tmp_path / "config.yaml", targets={"cpu": "CPU"})
    assert "--image" in caught.value.fix


POOLS = """\
workerPoolSpecs:
- machineSpec: {machineType: a2-highgpu-1g, acceleratorType: NVIDIA_TESLA_A100, acceleratorCount: 1}
  replicaCount: 1
  containerSpec: {imageUri: us-docker.pkg.dev/example/t/cats:1, args: [--epochs, "2"]}
- machineSpec: {machineType: a2-highgpu-1g, acceleratorType: NVIDIA_TESLA_A100, acceleratorCount: 1}
  replicaCount: 3
  diskSpec: {bootDiskSizeGb: 500}
  containerSpec: {imageUri: us-docker.pkg.dev/example/t/cats:1}
"""


@pytest.mark.parametrize("text", [POOLS, "jobSpec:\n  " + POOLS.replace("\n", "\n  ").rstrip()])
def test_the_pools_of_a_custom_job_are_taken(tmp_path: Path, text: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    result = convert(config, targets=TARGETS)
    assert "image: us-docker.pkg.dev/example/t/cats:1\n" in result.text
    assert result.text.count("accelerators: 1 x A100-40GB") == 2
    assert "count: 3" in result.text
    assert "- --epochs" in result.text
    assert [line for line in result.left_out if "bootDiskSizeGb" in line] == list(result.left_out)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}\n", "PyTorchJob of Kubernetes"),
        ("apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nspec: {}\n", "MPIJob of Kubernetes"),
        ("resources: {accelerators: 'A100:1'}\nsetup: pip\n", "no job is written so"),
        ("trialJobSpec:\n  " + POOLS.replace("\n", "\n  ").rstrip(), "no job is written so"),
        ("services: {a: {image: x, runtime: nvidia}}\n", "no job is written so"),
        ("type: command\ncompute: azureml:gpu-cluster\n", "no job is written so"),
        ("args: [--epochs, '3']\nmachine: a2-highgpu-1g\n", "no job is written so"),
    ],
)
def test_another_service_s_job_never_becomes_one_without_its_accelerator(
    tmp_path: Path, text: str, what: str
) -> None:
    with pytest.raises(InputError, match=what):
        converted(tmp_path, text)


# --- other services -------------------------------------------------------------------------------

CONTAINER = "containers: [{name: a, image: x/y:1, command: [python, t.py]"
GPUS = "resources: {limits: {nvidia.com/gpu: 8}}"
PYTORCH = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: cats, labels: {{kueue.x-k8s.io/queue-name: gpus}}}}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: {{spec: {{{CONTAINER}, {GPUS}}}]}}}}
    Worker:
      replicas: 3
      template: {{spec: {{{CONTAINER}, {GPUS}}}]}}}}
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  trainer:
    image: x/y:1
    args: [--lr, "0.1", --steps, "20"]
    numNodes: 4
    env:
    - {name: A, value: b}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""
JOBSET = f"""\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - name: slice
    replicas: 2
    template:
      spec:
        parallelism: 4
        template:
          spec:
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice
              cloud.google.com/gke-tpu-topology: 4x4
            {CONTAINER}, resources: {{limits: {{google.com/tpu: 4}}}}}}]
"""
TFJOB = f"""\
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    PS: {{replicas: 1, template: {{spec: {{{CONTAINER}}}]}}}}}}
    Worker:
      replicas: 3
      template:
        spec:
          nodeSelector: {{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
          {CONTAINER}, {GPUS}}}]
"""
SKY = """\
resources:
  any_of: [{infra: gcp/us-central1, accelerators: "H100:8"}, {infra: aws}]
  image_id: docker:x/y:1
  use_spot: true
  disk_size: 256
num_nodes: 2
envs: {LR: "0.1"}
setup: pip install x
run: torchrun train.py
"""


def test_a_cluster_s_job_that_counts_gpus_without_a_name_asks_which(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"8 x nvidia.com/gpu, and no line says which") as caught:
        converted(tmp_path, PYTORCH)
    assert "--accelerator" in caught.value.fix
    result = converted(tmp_path, PYTORCH, accelerator="H100")
    assert pools(result) == {"chief": (1, "a3-highgpu-8g", 8), "worker": (3, "a3-highgpu-8g", 8)}
    assert (job(result).image, job(result).command) == ("x/y:1", ("python", "t.py"))
    assert [line.split(": ")[1].split(".")[-1] for line in result.left_out] == [
        *("io/queue-name", "command"),
    ]


def test_nodes_secrets_slices_and_roles_of_a_cluster_s_job(tmp_path: Path) -> None:
    train = converted(tmp_path, TRAIN, accelerator="A100-80GB")
    assert pools(train) == {"chief": (1, "a2-ultragpu-8g", 8), "worker": (3, "a2-ultragpu-8g", 8)}
    assert "  A: b\n  TOKEN:\n    secret: hub\n    key: token\n" in train.text
    assert [line.split(": ")[1] for line in train.left_out] == ["spec.trainer.env.NODE"]
    assert job(train).arguments == ("--lr", "0.1", "--steps", "20") and "- 20\n" in train.text
    slices = converted(tmp_path, JOBSET)
    assert "machine: ct5lp-hightpu-4t\ntopology: 4x4\nreplicas:\n  workers:\n    count: 1" in (
        slices.text
    )
    parameters = converted(tmp_path, TFJOB)
    assert pools(parameters) == {
        "chief": (1, "a2-ultragpu-8g", 8),
        "worker": (2, "a2-ultragpu-8g", 8),
        "ps": (1, "n1-standard-4", 0),
    }


def test_a_task_of_skypilot(tmp_path: Path) -> None:
    result = converted(tmp_path, SKY)
    assert pools(result) == {"chief": (1, "a3-highgpu-8g", 8), "worker": (1, "a3-highgpu-8g", 8)}
    now = job(result)
    assert (now.command, now.arguments) == (("bash", "-c"), ("torchrun train.py",))
    assert (now.image, now.region, now.scheduling.strategy) == ("x/y:1", "us-central1", "spot")
    left = ["resources.any_of.1", "resources.disk_size", "setup"]
    assert [line.split(": ")[1] for line in result.left_out] == left
    several = converted(tmp_path, SKY.replace('"H100:8"', "{H100: 8, L4: 4}"))
    assert "resources.accelerators.L4: the first choice is taken" in "\n".join(several.left_out)


VOLUMES = """\
apiVersion: batch/v1
kind: Job
spec:
  completionMode: Indexed
  parallelism: 2
  activeDeadlineSeconds: 604800
  ttlSecondsAfterFinished: 60
  template:
    spec:
      nodeSelector: {pool: gpus, cloud.google.com/gke-accelerator: nvidia-l4}
      priorityClassName: high
      serviceAccountName: trainer
      terminationGracePeriodSeconds: 90
      tolerations:
      - {key: nvidia.com/gpu, operator: Exists}
      - {key: team, value: a, effect: NoExecute}
      containers:
      - name: a
        image: x/y:1
        resources:
          requests: {cpu: "4", memory: 16Gi, ephemeral-storage: 9Gi}
          limits: {nvidia.com/gpu: 1, memory: 32Gi}
        volumeMounts:
        - {name: data, mountPath: /data, readOnly: true}
        - {name: runs, mountPath: /mnt/runs}
        - {name: memory, mountPath: /dev/shm}
        - {name: settings, mountPath: /etc/a}
        - {name: runs, mountPath: /mnt/one, subPath: one}
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: photos}}
      - {name: runs, persistentVolumeClaim: {claimName: runs}}
      - {name: memory, emptyDir: {medium: Memory}}
      - {name: settings, configMap: {name: a}}
      - {name: unmounted, secret: {secretName: b}}
"""


def test_what_only_a_cluster_has_comes_over_and_the_rest_is_named(tmp_path: Path) -> None:
    result = converted(tmp_path, VOLUMES)
    cluster = kubernetes.of(job(result))
    assert job(result).scheduling.timeout == 604_800
    assert {folder: (each.claim, each.read_only) for folder, each in cluster.volumes.items()} == {
        "/data": ("photos", True),
        "/mnt/runs": ("runs", False),
    }
    assert (cluster.priority, cluster.grace, cluster.ttl) == ("high", 90, None)
    assert cluster.node_selector == {"pool": "gpus"}
    assert [(each.key, each.value, each.effect) for each in cluster.tolerations] == [
        ("team", "a", "NoExecute")
    ]
    assert cluster.requests and (cluster.requests.cpu, cluster.requests.memory) == ("4", "16Gi")
    assert cluster.limits and (cluster.limits.cpu, cluster.limits.memory) == (None, "32Gi")
    left = {
        re.sub(r"^\S+: spec\.(template\.spec\.)?(containers\.0\.)?", "", line).split(": ")[0]
        for line in result.left_out
    }
    assert left == {
        "completionMode", "ttlSecondsAfterFinished", "serviceAccountName",
        "resources.requests.ephemeral-storage",
        *(f"volumes.0.{n}" for n in ("name", "secret.secretName")),
        *(f"volumes.1.{n}" for n in ("name", "configMap.name", "mountPath")),
        "volumes.2.persistentVolumeClaim.claimName",
        *(f"volumes.2.{n}" for n in ("name", "mountPath", "subPath")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("was", "now", "named"),
    [
        ("{key: team, value: a, effect: NoExecute}", "{operator: Exists}", "tolerations"),
        ("memory: 16Gi", "memory: '17179869184'", "resources.requests"),
        ("terminationGracePeriodSeconds: 90", "terminationGracePeriodSeconds: 0", "terminationG"),
        ("mountPath: /data,", "mountPath: /data/../a,", "volumes"),
    ],
)
def test_what_a_field_refuses_is_named_and_the_job_is_converted(
    was: str, now: str, named: str, tmp_path: Path
) -> None:
    result = converted(tmp_path, VOLUMES.replace(was, now))
    why = "a job's file has no place for it as it is written"
    assert [line for line in result.left_out if named in line and line.endswith(why)]
    assert job(result).scheduling.timeout == 604_800


def test_roles_with_other_nodes_are_named_and_those_alike_are_not(tmp_path: Path) -> None:
    alike = PYTORCH.replace("{spec: {", "{spec: {priorityClassName: high, ")
    named = [
        line for line in converted(tmp_path, alike, accelerator="H100").left_out if "prio" in line
    ]
    assert named == []
    other = "priorityClassName: low".join(alike.rsplit("priorityClassName: high", 1))
    left = converted(tmp_path, other, accelerator="H100").left_out
    assert any("Worker.template.spec.priorityClassName" in line for line in left)


def test_the_pods_of_a_slice_are_one_replica(tmp_path: Path) -> None:
    pod = JOBSET.split("template:\n          spec:\n")[1]
    text = f"apiVersion: batch/v1\nkind: Job\nspec:\n parallelism: 4\n template:\n  spec:\n{pod}"
    assert "workers" not in converted(tmp_path, text).text
    two = converted(tmp_path, text.replace("parallelism: 4", "parallelism: 8"))
    assert "topology: 4x4\nreplicas:\n  workers:\n    count: 1\n" in two.text


def test_the_commands_of_vertex_ai_and_xpk_and_a_local_train() -> None:
    pool = "machine-type=n1-standard-8,accelerator-type=NVIDIA_TESLA_V100,accelerator-count=1"
    command = f"gcloud ai custom-jobs create --worker-pool-spec={pool},container-image-uri=x/y "
    command += f"--worker-pool-spec {pool},replica-count=2 --args=--epochs,2 --command=python,-m"
    result = convert(None, command.split(), targets=TARGETS)
    assert pools(result) == {"chief": (1, "n1-standard-8", 1), "worker": (2, "n1-standard-8", 1)}
    assert (job(result).command, job(result).arguments) == (("python", "-m"), ("--epochs", "2"))
    command = "xpk workload create --spot --device-type=h100-80gb-8 --num-nodes 2 --env A=b "
    words = [*command.split(), "--docker-image", "x/y", "--command", "python t.py --n=3"]
    result = convert(None, words, targets=TARGETS)
    assert pools(result) == {"chief": (1, "a3-highgpu-8g", 8), "worker": (1, "a3-highgpu-8g", 8)}
    assert job(result).arguments == ("python t.py --n=3",) and "A: b" in result.text
    assert job(result).scheduling.strategy == "spot"
    tpu = "xpk workload create --tpu-type=v6e-16 --docker-image x/y"
    assert "topology: 4x4" in convert(None, tpu.split(), targets=TARGETS).text
    local = "gcloud ml-engine local train --distributed --worker-count 3 -- --epochs 3"
    result = convert(None, local.split(), image="x/y", targets=TARGETS)
    counts = {role: count for role, (count, _, _) in pools(result).items()}
    assert counts == {"chief": 1, "worker": 3, "ps": 2} and result.left_out == ()


@pytest.mark.parametrize(
    "text",
    [
        "jobSpec: 3",
        "workerPoolSpecs: [{containerSpec: {env: [A]}}]",
        "{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {containers: {a: b}}}}}",
        "{apiVersion: v1, kind: JobSet, spec: {replicatedJobs: {a: b}}}",
        "#!/bin/bash\n#SBATCH --nodes=4\nsrun python t.py",
        "{run: python t.py, envs: [A]}",
        "worker_pool_specs: 3",
        "- ",
        "--- # nothing",
    ],
)
def test_a_file_that_no_service_reads_is_no_fault_of_the_factory(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError, match=r"job\.yaml: (a script: )?no job is") as caught:
        convert(tmp_path / "job.yaml", (), targets=TARGETS)
    assert "docs/jobs.md" in caught.value.fix
