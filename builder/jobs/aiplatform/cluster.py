"""The machines and the programs of an old configuration, on what Vertex AI has today."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.aiplatform import presets
from builder.jobs.aiplatform.oldjob import OldJob
from builder.jobs.ledger import Fate
from builder.jobs.pools import Pool

ROLES: Final = {
    "worker": "workers",
    "parameterServer": "parameter_servers",
    "evaluator": "evaluator",
}
"""The prefix of AI Platform's fields -> the name in a job's file."""
PREFIXES: Final = ("master", *ROLES)
CONFIG: Final = (
    *("imageUri", "acceleratorConfig", "containerCommand", "containerArgs", "diskConfig"),
    "tpuTfVersion",
)
_TPU: Final = "cloud_tpu"
_PREFIX_OF: Final = dict(zip(("worker", "ps", "evaluator"), ROLES, strict=True))


def cluster(reader: OldJob, old: Mapping[str, Any]) -> dict[str, Any]:
    """Machines, replicas, disk, and each role's command and arguments. Raises InputError."""
    tier = reader.choice(
        old.get("scaleTier", "BASIC"), (*presets.PRESETS, "CUSTOM"), ("scaleTier",), "scale tier"
    )
    configs = {prefix: _config(reader, old, prefix) for prefix in PREFIXES}
    programs = _programs(reader, old, configs)
    disk = _disk(reader, configs)
    if tier == "CUSTOM":
        found = _custom(reader, old, configs, programs)
    else:
        found = _preset(reader, old, tier, configs, programs)
    return {**found, **programs["master"], **disk}


def _config(reader: OldJob, old: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    return reader.only(old.get(f"{prefix}Config", {}), CONFIG, (f"{prefix}Config",))


# --- machines of a scale tier ---------------------------------------------------------------------


def _preset(
    reader: OldJob,
    old: Mapping[str, Any],
    tier: str,
    configs: Mapping[str, Mapping[str, Any]],
    programs: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """A tier is its preset. Where a role beside the chief has a program of its own, the preset's
    machines are written out, for a preset has no room for it."""
    preset = presets.PRESETS[tier]
    today = ", ".join(
        f"{one.count} {one.role} {one.machine}"
        + (f" with {one.accelerators} x {one.accelerator}" if one.accelerator else "")
        for one in preset.pools
    )
    if preset.was:
        why = f"{tier} was {preset.was}; preset {tier} is {today}"
        reader.tell("changed", ("scaleTier",), why)
    elif "scaleTier" in old:
        reader.tell("kept", ("scaleTier",))
    else:
        reader.notes.append(
            "no scaleTier: the service took BASIC, a machine without an accelerator; if the flag "
            "--scale-tier named another one, give it"
        )
    for prefix in PREFIXES:
        for path in ((f"{prefix}Type",), (f"{prefix}Count",)):
            if path[0] in old:
                why = f"{tier} brings its own machines; others went with scaleTier: CUSTOM alone"
                reader.tell("dropped", path, why)
        if "acceleratorConfig" in configs[prefix]:
            here = (f"{prefix}Config", "acceleratorConfig")
            reader.tell("dropped", here, f"{tier} brings its own machines")
    beside = {_PREFIX_OF[pool.role]: pool for pool in preset.pools[1:]}
    for prefix in ROLES:
        if configs[prefix] and prefix not in beside:
            reader.tell("dropped", (f"{prefix}Config",), f"{tier} has no {prefix}")
    if not any(programs[prefix] for prefix in beside):
        return {"preset": tier}
    replicas = {
        ROLES[prefix]: {"count": pool.count, **_written(pool), **programs[prefix]}
        for prefix, pool in beside.items()
    }
    return {**_written(preset.pools[0]), "replicas": replicas}


def _written(pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": pool.machine}
    if pool.accelerator:
        found["accelerators"] = f"{pool.accelerators} x {pool.accelerator}"
    return found


# --- machines by name -----------------------------------------------------------------------------


def _custom(
    reader: OldJob,
    old: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    programs: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    if "masterType" not in old:
        raise reader.refuse(
            ("scaleTier",), "CUSTOM needs masterType", "add masterType: n1-standard-8"
        )
    if _TPU in (old.get("workerType"), old["masterType"]):
        return _tpu(reader, old, configs)
    chief = _pool(reader, old, configs, "master")
    replicas = {}
    for prefix, name in ROLES.items():
        count = reader.number(old.get(f"{prefix}Count", "0"), (f"{prefix}Count",), "write 2")
        if count == 0:
            _unused(reader, old, prefix)
            continue
        if f"{prefix}Type" not in old:
            raise reader.refuse((f"{prefix}Count",), f"needs {prefix}Type", f"add {prefix}Type")
        pool = _pool(reader, old, configs, prefix)
        inherits = name != "parameter_servers" and pool["machine"] == chief["machine"]
        if inherits and "accelerators" in chief:
            if pool.get("accelerators") == chief["accelerators"]:
                del pool["accelerators"]
            pool.setdefault("accelerators", "none") if _without(old, configs, prefix) else None
        if pool["machine"] == chief["machine"]:
            del pool["machine"]
        told = {**pool, **programs[prefix]}
        replicas[name] = {"count": count, **told} if told else count
    return {**chief, "replicas": replicas} if replicas else chief


def _without(old: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]], prefix: str) -> bool:
    """Whether a role's machines carried no accelerator."""
    named = presets.LEGACY_MACHINES.get(old[f"{prefix}Type"], ("", None, 0))[1]
    return not (named or configs[prefix].get("acceleratorConfig"))


def _unused(reader: OldJob, old: Mapping[str, Any], prefix: str) -> None:
    for name in (f"{prefix}Type", f"{prefix}Config"):
        if name in old:
            reader.tell("dropped", (name,), f"there is no {prefix}Count, so there was none")
    if f"{prefix}Count" in old:
        reader.tell("kept", (f"{prefix}Count",))


def _tpu(
    reader: OldJob, old: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """AI Platform had a master beside the TPU; on Vertex AI the TPU's machine runs the program.

    Source: Vertex AI, Training with TPU accelerators: one replica, in the first worker pool.
    """
    prefix = "worker" if old.get("workerType") == _TPU else "master"
    if prefix == "worker":
        reader.tell("changed", ("workerType",), "the TPU's machine is the only one: the chief's")
        reader.tell("dropped", ("masterType",), "the TPU's machine runs the program itself")
        for name in configs["worker"]:
            why = "a TPU's worker ran no program of yours: the master did"
            fate: Fate = "kept" if name in ("acceleratorConfig", "diskConfig") else "dropped"
            reader.tell(fate, ("workerConfig", name), "" if fate == "kept" else why)
        if "workerCount" in old:
            count = reader.number(old["workerCount"], ("workerCount",), "write 1")
            if count != 1:
                raise reader.refuse(("workerCount",), "cloud_tpu was one worker", "write 1")
            reader.tell("changed", ("workerCount",), "the TPU is the chief")
        if "acceleratorConfig" in configs["master"]:
            raise reader.refuse(
                ("masterConfig", "acceleratorConfig"),
                "a job with a TPU has no other accelerators today",
                "remove it",
            )
    for other in ROLES:
        counted = old.get(f"{other}Count", "0")
        if other != prefix and reader.number(counted, (f"{other}Count",), "write 0"):
            raise reader.refuse(
                (f"{other}Count",), "a TPU is one replica today", "remove the other roles"
            )
        if other != prefix:
            _unused(reader, old, other)
    return _pool(reader, old, configs, prefix)


def _pool(
    reader: OldJob,
    old: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    prefix: str,
) -> dict[str, Any]:
    """Machine and accelerators of one role, on what is offered today."""
    here = (f"{prefix}Type",)
    was = reader.text(old[f"{prefix}Type"], here)
    old_machine, name, count = presets.LEGACY_MACHINES.get(was, (was, None, 0))
    machine = presets.SUCCESSORS.get(old_machine, old_machine)
    config, asked = configs[prefix], (f"{prefix}Config", "acceleratorConfig")
    if given := config.get("acceleratorConfig"):
        reader.only(given, ("count", "type"), asked)
        if "type" not in given:
            raise reader.refuse(asked, "has no type", "add type: NVIDIA_TESLA_V100")
        name = reader.text(given["type"], (*asked, "type"))
        count = reader.number(given.get("count", "1"), (*asked, "count"), "write count: 2")
        if count < 1:
            raise reader.refuse((*asked, "count"), "'0' is no number", "write count: 2")
    if "tpuTfVersion" in config:
        why = "the version of TensorFlow is the image's now"
        reader.tell("dropped", (f"{prefix}Config", "tpuTfVersion"), why)
    if name is None:
        found = {"machine": _machine(reader, machine, here)}
    else:
        found = _with_accelerator(reader, machine, name, count, here, asked if given else None)
    if found["machine"] != was and _plain_role(reader, here):
        carried = f" with {found['accelerators']}" if "accelerators" in found else ""
        equal = f"was {old_machine}; " if old_machine not in (was, found["machine"]) else ""
        why = f"{was} {equal}is {found['machine']}{carried} now"
        reader.tell("changed", here, why)
    return found


def _plain_role(reader: OldJob, path: tuple[str, ...]) -> bool:
    return reader.name(path) not in reader.fates


def _machine(reader: OldJob, machine: str, here: tuple[str, ...]) -> str:
    try:
        return machines.place(machine).machine
    except InputError as error:
        raise reader.refuse(here, error.message, error.fix) from None


def _with_accelerator(
    reader: OldJob,
    machine: str,
    name: str,
    count: int,
    here: tuple[str, ...],
    asked: tuple[str, ...] | None,
) -> dict[str, Any]:
    """asked: the field with the accelerators, None where the machine's name brought them."""
    name = re.sub(r"_POD$", "", name)
    try:
        wanted = machines.device(name, machine)
    except InputError as error:
        raise reader.refuse(asked or here, error.message, error.fix) from None
    before = f"{count} x {wanted.name} on {machine}"
    if wanted.refused:
        wanted = machines.offer().devices[str(wanted.instead)]
    try:
        found = machines.place(machine, wanted.name, count)
    except InputError:
        found = machines.nearest(machine, wanted, count)
    if (found.machine, f"{found.count} x {wanted.name} on {machine}") != (machine, before):
        why = f"{before} is not offered: {found} is the nearest"
        reader.tell("changed", asked or here, why)
        if asked and found.machine != machine:
            reader.tell("changed", here, why)
    return {"machine": found.machine, "accelerators": f"{found.count} x {wanted.name}"}


# --- programs -------------------------------------------------------------------------------------


def _programs(
    reader: OldJob, old: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Each role's command, arguments and image, as a job's file has them.

    A role without containerArgs had none, where any role had containerCommand or containerArgs;
    else all have args. Source: ml.v1, ReplicaConfig: they and TrainingInput.args exclude each
    other.
    """
    shared = reader.texts(old.get("args", []), ("args",))
    if shared:
        reader.tell("kept", ("args",), came="arguments")
    own = any(
        one in config
        for config in configs.values()
        for one in ("containerCommand", "containerArgs")
    )
    chief_image = configs["master"].get("imageUri")
    found: dict[str, dict[str, Any]] = {}
    for prefix, config in configs.items():
        said: dict[str, Any] = {}
        base = "" if prefix == "master" else f"replicas.{ROLES[prefix]}."
        for name, key in (("containerCommand", "command"), ("containerArgs", "arguments")):
            if name in config:
                path = (f"{prefix}Config", name)
                said[key] = reader.texts(config[name], path)
                reader.tell("kept", path, came=f"{base}{key}")
        image = config.get("imageUri")
        if image is not None:
            path = (f"{prefix}Config", "imageUri")
            reader.text(image, path)
            reader.tell("kept", path, came=f"{base}image")
            if prefix != "master" and image != chief_image:
                said["image"] = image
        found[prefix] = said
    found["master"].pop("image", None)
    if arguments := [*found["master"].get("arguments", []), *shared]:
        found["master"]["arguments"] = arguments
    for prefix in ROLES if own else ():
        for key in ("command", "arguments"):
            if found["master"].get(key) and not (key == "command" and "image" in found[prefix]):
                found[prefix].setdefault(key, [])
            if found[prefix].get(key) == found["master"].get(key):
                found[prefix].pop(key, None)
    return found


def _disk(reader: OldJob, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One disk for every machine: the largest that a role had."""
    asked: dict[str, dict[str, Any]] = {}
    for prefix, config in configs.items():
        if "diskConfig" not in config:
            continue
        path = (f"{prefix}Config", "diskConfig")
        disk = reader.only(config["diskConfig"], ("bootDiskType", "bootDiskSizeGb"), path)
        asked[prefix] = {}
        if "bootDiskType" in disk:
            asked[prefix]["type"] = reader.text(disk["bootDiskType"], (*path, "bootDiskType"))
        if "bootDiskSizeGb" in disk:
            size = reader.number(disk["bootDiskSizeGb"], (*path, "bootDiskSizeGb"), "write 100")
            asked[prefix]["size_gb"] = size
    if not asked:
        return {}
    largest = max(asked, key=lambda prefix: asked[prefix].get("size_gb", 0))
    for prefix, disk in asked.items():
        path = (f"{prefix}Config", "diskConfig")
        same = disk == asked[largest]
        why = f"each machine has one disk now: that of {largest}"
        reader.tell("kept" if same else "changed", path, "" if same else why)
    reader.came["disk"] = (f"{largest}Config", "diskConfig")
    return {"disk": asked[largest]}
