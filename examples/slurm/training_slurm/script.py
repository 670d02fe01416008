"""A checked job as the script of a batch job. Pure functions.

Each replica is a step on a node of its own, in a container of pyxis. The job ends as its chief
ends, or when a replica fails. Sources: Slurm, sbatch, srun, scancel, scontrol; pyxis; enroot.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from builder import registry
from builder.jobs import machines
from builder.jobs.machines import replica_names
from builder.jobs.ready import Ready, arguments, output_variables, tf_config
from training_slurm.options import Section, SlurmSettings

_NAME = re.compile(r"(.+)-([0-9a-f]{12})(?:-(\d+))?(?:\.(\d+))?")
_HEAD = """\
#!/bin/bash
#SBATCH --job-name={name} --nodes={nodes} --ntasks-per-node=1 --time={minutes} {asked}
#SBATCH --output={folder}/service.log --open-mode=append --export=NONE
{exports}
mkdir -p {outputs} && cd {folder} && rm -f *.exit
hosts=($(scontrol show hostnames | sed "s/$/:$((20000 + SLURM_JOB_ID % 10000))/"))
replica() {{ # NAME NODE
  srun --export=ALL --nodes=1 --ntasks=1 --relative="$2" --output={folder}/"$1".log \\
    ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} --open-mode=append \\
    --container-image={image} --container-mounts={outputs}:/job --no-container-mount-home \\
    --no-container-entrypoint --container-env={names} -- {command}
  echo $? >"$1".exit
  [ "$(cat "$1".exit)" = 0 ]
}}
"""
_TAIL = """\
while wait -n && [ ! -e chief-0.exit ]; do :; done
code=$(cat chief-0.exit 2>/dev/null || grep -hvx 0 *.exit | head -n 1)
scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null
(sleep 30; scancel --signal=KILL "$SLURM_JOB_ID" 2>/dev/null) &
wait $replicas
kill $! 2>/dev/null
exit "${code:-1}"
"""


class Name(NamedTuple):
    """A batch job's name, which holds what a list has to tell."""

    job: str
    key: str
    run: int = 1
    attempt: int = 1

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Return the name that a text is; None for a job that this backend did not send."""
        match = _NAME.fullmatch(text)
        return cls(match[1], match[2], int(match[3] or 1), int(match[4] or 1)) if match else None

    @property
    def outputs(self) -> str:
        """Return what names the folder that all attempts of a run share."""
        return f"{self.job}-{self.key}" + (f"-{self.run}" if self.run > 1 else "")

    def __str__(self) -> str:
        return self.outputs + (f".{self.attempt}" if self.attempt > 1 else "")


def script(ready: Ready, settings: SlurmSettings, folder: Path, name: Name) -> str:
    """Return the script of a job. folder: of all jobs, as the nodes see it."""
    job, base = ready.job, ready.job.output(name.outputs) or "/job"
    promised = ready.placements[0].promise(ready.image.driver)
    variables = {**promised, **job.variables, **output_variables(base)}
    image = registry.parse(ready.image.reference)
    host = "" if image.host == registry.DOCKER_HUB else f"{image.host}#"
    head = _HEAD.format(
        name=name,
        nodes=len(replica_names(job.pools)),
        minutes=-(-job.scheduling.timeout // 60),
        asked=_asked(ready, settings),
        folder=shlex.quote(str(folder / str(name))),
        exports="\n".join(f"export {each}={shlex.quote(variables[each])}" for each in variables),
        outputs=shlex.quote(str(folder / "outputs" / name.outputs)),
        image=shlex.quote(f"{host}{image.repository}:{image.target}"),
        names=",".join([*variables, "TF_CONFIG"]),
        command=shlex.join([*(job.command or ready.image.entrypoint), *arguments(job, base)]),
    )
    return head + _replicas(ready) + _TAIL


def _asked(ready: Ready, settings: SlurmSettings) -> str:
    """Return what sbatch asks for: all replicas have the same machine."""
    placement, device = ready.placements[0], ready.placements[0].device
    vcpus, memory = machines.size(placement.machine) or (None, None)
    gpu = ready.job.section("slurm", Section).gpu
    options = {
        "cpus-per-task": vcpus,
        "mem": memory and f"{memory:.0f}G",
        "gpus-per-node": device and f"{gpu or device.name.split('-')[0].lower()}:{placement.count}",
        **{each: getattr(settings, each) for each in ("partition", "account")},
    }
    words = [f"--{each}={shlex.quote(str(value))}" for each, value in options.items() if value]
    never = ready.job.scheduling.restarts == "never"
    return " ".join([*words, "--no-requeue" if never else "--requeue"])


def _replicas(ready: Ready) -> str:
    """Return the lines that start the replicas, each with its place in the cluster."""
    addresses = {pool.role: ["%s"] * pool.count for pool in ready.job.pools}
    members = sum(len(hosts) for role, hosts in addresses.items() if role != "evaluator")
    lines = ["replicas="]
    for node, name in enumerate(replica_names(ready.job.pools)):
        role, _, index = name.rpartition("-")
        if ready.job.distributed:
            config = shlex.quote(tf_config(addresses, type=role, index=int(index)))
            lines.append(f'export TF_CONFIG=$(printf {config} "${{hosts[@]:0:{members}}}")')
        lines += [f"replica {name} {node} &", 'replicas="$replicas $!"']
    return "\n".join([*lines, ""])
