"""An old AI Platform config.yaml as a job of today, with a note for each difference.

The input is the file of gcloud's `--config` (a Job with its `trainingInput`) and the options beside
it. A field without a counterpart becomes a note; an unknown field is refused at its line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.core.yamlfile import Document
from builder.facts import accelerators
from builder.jobs import description, machines
from builder.jobs.aiplatform import presets
from builder.jobs.aiplatform import render as legacy

_ROLES = {
    "worker": "workers",
    "parameterServer": "parameter_servers",
    "evaluator": "evaluator",
}
_PREFIXES = ("master", *_ROLES)
_KNOWN = (
    *(f"{prefix}{part}" for prefix in _PREFIXES for part in ("Type", "Config")),
    *(f"{prefix}Count" for prefix in _ROLES),
    *("scaleTier", "args", "region", "jobDir", "serviceAccount", "network", "scheduling"),
    *("hyperparameters", "packageUris", "pythonModule", "runtimeVersion", "pythonVersion"),
    *("useChiefInTfConfig", "enableWebAccess", "encryptionConfig"),
)
_CONFIG = ("imageUri", "acceleratorConfig", "containerCommand", "containerArgs", "diskConfig")
_CONFIG_ALL = (*_CONFIG, "tpuTfVersion")
_JOB = ("trainingInput", "jobId", "labels")
_TUNING = {
    "goal": "goal",
    "hyperparameterMetricTag": "metric",
    "maxTrials": "trials",
    "maxParallelTrials": "parallel",
    "maxFailedTrials": "max_failed",
}
_SCALES = {value: key for key, value in legacy.SCALES.items()}


@dataclass(frozen=True)
class Converted:
    """The text of a jobs/*.yaml, and notes about its differences from the old file."""

    text: str
    notes: tuple[str, ...]


@dataclass
class _OldConfig:
    """The old file while it is read, and the notes so far."""

    document: Document
    where: str
    notes: list[str] = field(default_factory=list)

    def refuse(self, path: tuple[str, ...], what: str, fix: str) -> InputError:
        name = ".".join(path)
        return InputError(f"{self.where}:{self.document.line(*path)}: {name}: {what}", fix)

    def only(self, value: Any, known: Sequence[str], path: tuple[str, ...]) -> Mapping[str, Any]:
        """The mapping at `path`. Raises InputError for a name that is not `known`."""
        if not isinstance(value, dict):
            raise self.refuse(path, "expected `name: value` lines", "indent what belongs to it")
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise self.refuse((*path, name), "not a field of AI Platform's", fix)
        return value

    def text(self, value: Any, path: tuple[str, ...]) -> str:
        if not isinstance(value, str):
            raise self.refuse(path, "expected one value", "write it on the same line")
        return value

    def number(self, value: Any, path: tuple[str, ...], fix: str) -> int:
        text = self.text(value, path)
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.refuse(path, f"{text[:20]!r} is no number", fix)
        return int(text)


def convert_file(config: Path, **options: Any) -> Converted:
    """`convert` for a file on this machine, with its options. Raises InputError."""
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{config}: {why}", "name the file that gcloud's --config took") from None
    return convert(text, config, **options)


def convert(
    text: str,
    source: Path,
    *,
    image: str | None = None,
    region: str | None = None,
    job_dir: str | None = None,
    arguments: Sequence[str] = (),
    targets: Mapping[str, str] | None = None,
) -> Converted:
    """The job of an old config.yaml and of gcloud's options beside it.

    targets: the accelerator of each target of the project, to propose an image where the old job
    named none. Raises InputError at the line that is wrong.
    """
    document = yamlfile.parse(text, str(source))
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{source}:{problem.line}: {problem.field}: {problem.what}", problem.fix)
    reader = _OldConfig(document, str(source))
    top = document.value
    path: tuple[str, ...] = ()
    whole: Mapping[str, Any] = {}
    if isinstance(top, dict) and "trainingInput" in top:
        whole, path = reader.only(top, _JOB, ()), ("trainingInput",)
        old = reader.only(top["trainingInput"], _KNOWN, path)
    else:
        old = reader.only(top, _KNOWN, path)
    if not old:
        raise InputError(f"{source}: no trainingInput", "name the file that gcloud's --config took")
    job: dict[str, Any] = {"image": ""}
    job |= _where(reader, old, path, region)
    job |= _cluster(reader, old, path)
    job["image"] = _image(reader, old, path, image, job, targets or {})
    job |= _what(reader, old, path, job_dir, arguments)
    job |= _limits(reader, old, path)
    if labels := whole.get("labels"):
        job["labels"] = labels
    if tuning := old.get("hyperparameters"):
        job["study"] = _study(reader, tuning, (*path, "hyperparameters"))
    _remarks(reader, old)
    return _checked(reader, job, source)


def _where(
    reader: _OldConfig, old: Mapping[str, Any], path: tuple[str, ...], region: str | None
) -> dict[str, str]:
    found = region or old.get("region")
    if not found:
        reader.notes.append("no region: give --region, or add region: to the job")
        return {}
    return {"region": reader.text(found, (*path, "region"))}


# --- machines -------------------------------------------------------------------------------------


def _cluster(reader: _OldConfig, old: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    tier = reader.text(old.get("scaleTier", "BASIC"), (*path, "scaleTier"))
    known = (*presets.PRESETS, "CUSTOM")
    if tier not in known:
        near = difflib.get_close_matches(tier.upper(), known, n=1)
        raise reader.refuse(
            (*path, "scaleTier"),
            f"{tier!r} was no scale tier",
            f"write {near[0]}" if near else f"write one of {', '.join(known)}",
        )
    if tier != "CUSTOM":
        was, now = presets.PRESETS[tier].was, presets.PRESETS[tier].pools
        today = ", ".join(
            f"{one.count} {one.role} {one.machine}"
            + (f" with {one.accelerators} x {one.accelerator}" if one.accelerator else "")
            for one in now
        )
        reader.notes.append(f"{tier} was {was}; preset {tier} is {today}")
        return {"preset": tier}
    if "masterType" not in old:
        raise reader.refuse(
            (*path, "scaleTier"), "CUSTOM needs masterType", "add masterType: n1-standard-8"
        )
    chief = _pool(reader, old, path, "master")
    replicas = {}
    for prefix, name in _ROLES.items():
        count = old.get(f"{prefix}Count", "0")
        if reader.number(count, (*path, f"{prefix}Count"), "write 2") == 0:
            continue
        if f"{prefix}Type" not in old:
            raise reader.refuse(
                (*path, f"{prefix}Count"), f"needs {prefix}Type", f"add {prefix}Type"
            )
        pool = _pool(reader, old, path, prefix)
        same = pool == chief and name != "parameter_servers"
        inherits = name != "parameter_servers" and pool["machine"] == chief["machine"]
        if inherits and "accelerators" in chief and "accelerators" not in pool:
            pool["accelerators"] = "none"
        if pool["machine"] == chief["machine"]:
            del pool["machine"]
        replicas[name] = int(count) if same or not pool else {"count": int(count), **pool}
    return {**chief, "replicas": replicas} if replicas else chief


def _pool(
    reader: _OldConfig, old: Mapping[str, Any], path: tuple[str, ...], prefix: str
) -> dict[str, Any]:
    """Machine and accelerators of one role, on what is offered today."""
    here = (*path, f"{prefix}Type")
    was = reader.text(old[f"{prefix}Type"], here)
    machine, name, count = presets.LEGACY_MACHINES.get(was, (was, None, 0))
    if machine != was:
        with_ = f" with {count} x {name}" if name else ""
        reader.notes.append(f"{was} is {machine}{with_}")
    config = reader.only(old.get(f"{prefix}Config", {}), _CONFIG_ALL, (*path, f"{prefix}Config"))
    if given := config.get("acceleratorConfig"):
        place = (*path, f"{prefix}Config", "acceleratorConfig")
        reader.only(given, ("count", "type"), place)
        if "type" not in given:
            raise reader.refuse(place, "has no type", "add type: NVIDIA_TESLA_V100")
        name = reader.text(given["type"], (*place, "type"))
        count = reader.number(given.get("count", "1"), (*place, "count"), "write count: 2")
        if count < 1:
            raise reader.refuse((*place, "count"), "'0' is no number", "write count: 2")
    if "tpuTfVersion" in config:
        reader.notes.append("tpuTfVersion: the version of TensorFlow is the image's now")
    if name is None:
        return {"machine": _machine(reader, machine, here)}
    return _with_accelerator(reader, machine, name, count, here)


def _machine(reader: _OldConfig, machine: str, here: tuple[str, ...]) -> str:
    if machine == "n1-highcpu-8":
        reader.notes.append("n1-highcpu-8 is not offered for training: n1-standard-8 stands for it")
        return "n1-standard-8"
    try:
        return machines.place(machine).machine
    except InputError as error:
        raise reader.refuse(here, error.message, error.fix) from None


def _with_accelerator(
    reader: _OldConfig, machine: str, name: str, count: int, here: tuple[str, ...]
) -> dict[str, Any]:
    name = re.sub(r"_POD$", "", name)
    try:
        wanted = machines.device(name, machine)
    except InputError as error:
        raise reader.refuse(here, error.message, error.fix) from None
    asked = f"{count} x {wanted.name} on {machine}"
    if wanted.refused:
        wanted = machines.offer().devices[str(wanted.instead)]
    try:
        found = machines.place(machine, wanted.name, count)
    except InputError:
        found = machines.nearest(machine, wanted, count)
    if (found.machine, f"{found.count} x {wanted.name} on {machine}") != (machine, asked):
        reader.notes.append(f"{asked} is not offered: {found} is the nearest")
    return {"machine": found.machine, "accelerators": f"{found.count} x {wanted.name}"}


# --- image, arguments, limits ---------------------------------------------------------------------


def _image(
    reader: _OldConfig,
    old: Mapping[str, Any],
    path: tuple[str, ...],
    image: str | None,
    job: Mapping[str, Any],
    targets: Mapping[str, str],
) -> str:
    named: dict[str, tuple[str, ...]] = {}
    for prefix in _PREFIXES:
        config = old.get(f"{prefix}Config", {})
        if isinstance(config, dict) and config.get("imageUri"):
            place = (*path, f"{prefix}Config", "imageUri")
            named.setdefault(reader.text(config["imageUri"], place), place)
    if len(named) > 1:
        different = list(named.values())[1]
        raise reader.refuse(
            different, "another image than the master's", "make one image that plays both roles"
        )
    if image:
        return image
    if named:
        found = next(iter(named))
        if re.match(r"(?:[a-z]+\.)?gcr\.io/", found):
            reader.notes.append(
                f"{found}: Container Registry takes no pushes since 2025-03-18; its names are "
                "served by Artifact Registry, where the image was moved"
            )
        return found
    carried = _carried(job)
    fitting = [one for one, accelerator in targets.items() if accelerator == carried]
    how = "a runtime version and a package" if old.get("runtimeVersion") else "no image"
    if not fitting:
        raise InputError(
            f"{reader.where}: the old job named {how}, and no target of the project is for "
            f"{carried}",
            "give --image with the image that stands in for it",
        )
    reader.notes.append(f"the old job named {how} in this file: {fitting[0]} is for {carried}")
    return fitting[0]


def _carried(job: Mapping[str, Any]) -> str:
    """What the chief carries, by the name that targets use."""
    if job.get("preset"):
        name = presets.PRESETS[str(job["preset"])].pools[0].accelerator
    else:
        name = str(job["accelerators"]).split(" x ")[1] if "accelerators" in job else None
    return accelerators.find(name).name if name else "CPU"


def _what(
    reader: _OldConfig,
    old: Mapping[str, Any],
    path: tuple[str, ...],
    job_dir: str | None,
    arguments: Sequence[str],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    config = old.get("masterConfig", {})
    given = [*_texts(reader, old.get("args", []), (*path, "args"))]
    if isinstance(config, dict):
        for name, key in (("containerCommand", "command"), ("containerArgs", "arguments")):
            if name in config:
                found[key] = _texts(reader, config[name], (*path, "masterConfig", name))
        if "diskConfig" in config:
            disk = reader.only(
                config["diskConfig"],
                ("bootDiskType", "bootDiskSizeGb"),
                (*path, "masterConfig", "diskConfig"),
            )
            size = {}
            if "bootDiskSizeGb" in disk:
                here = (*path, "masterConfig", "diskConfig", "bootDiskSizeGb")
                size = {"size_gb": reader.number(disk["bootDiskSizeGb"], here, "write 100")}
            kind = {"type": disk["bootDiskType"]} if "bootDiskType" in disk else {}
            found["disk"] = kind | size
    if every := [*found.get("arguments", []), *given, *arguments]:
        found["arguments"] = every
    if where := job_dir or old.get("jobDir"):
        found["job_dir"] = where
        found["pass_job_dir"] = True
        reader.notes.append("jobDir: --job-dir is passed as before, and AIP_MODEL_DIR is set too")
    return found


def _texts(reader: _OldConfig, value: Any, path: tuple[str, ...]) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise reader.refuse(path, "expected a list of texts", "write [--name, value]")
    return [str(one) for one in value]


def _limits(reader: _OldConfig, old: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        new: old[name]
        for name, new in (("serviceAccount", "service_account"), ("network", "network"))
        if name in old
    }
    here = (*path, "scheduling")
    plan = reader.only(
        old.get("scheduling", {}), ("maxRunningTime", "maxWaitTime", "priority"), here
    )
    if longest := plan.get("maxRunningTime"):
        found["scheduling"] = {"timeout": longest}
    for name in ("maxWaitTime", "priority"):
        if name in plan:
            reader.notes.append(f"{name}: has no counterpart for standard machines; left out")
    return found


def _study(reader: _OldConfig, old: Any, path: tuple[str, ...]) -> dict[str, Any]:
    more = ("params", "algorithm", "enableTrialEarlyStopping", "resumePreviousJobId")
    tuning = reader.only(old, (*_TUNING, *more), path)
    found: dict[str, Any] = {"metric": "training/hptuning/metric"}
    for name, new in _TUNING.items():
        if name in tuning:
            value = reader.text(tuning[name], (*path, name))
            found[new] = value if new == "metric" else _plain(value.lower())
    algorithms = {value: key for key, value in legacy.ALGORITHMS.items()}
    if algorithm := tuning.get("algorithm"):
        if algorithm not in algorithms:
            raise reader.refuse(
                (*path, "algorithm"), f"{algorithm!r} was none", f"one of {', '.join(algorithms)}"
            )
        found["algorithm"] = algorithms[algorithm]
    if str(tuning.get("enableTrialEarlyStopping", "")).lower() == "true":
        found["early_stopping"] = "curve"
    if "resumePreviousJobId" in tuning:
        reader.notes.append("resumePreviousJobId: a study cannot take up an old one's trials")
    found["parameters"] = {}
    for index, one in enumerate(tuning.get("params") or []):
        name, spec = _parameter(reader, one, (*path, "params"), index)
        found["parameters"][name] = spec
    return found


_PARAM = ("parameterName", "type", "minValue", "maxValue")
_PARAM_ALL = (*_PARAM, "categoricalValues", "discreteValues", "scaleType")


def _parameter(
    reader: _OldConfig, value: Any, path: tuple[str, ...], index: int
) -> tuple[str, dict[str, Any]]:
    one = reader.only(value, _PARAM_ALL, path)
    if "parameterName" not in one:
        raise reader.refuse(path, f"entry {index + 1} has no parameterName", "add it")
    spec: dict[str, Any] = {}
    kind = str(one.get("type", "")).lower()
    if "minValue" in one or "maxValue" in one:
        spec = {"min": _plain(one.get("minValue")), "max": _plain(one.get("maxValue"))}
        if kind == "double":
            spec["type"] = "double"
        elif kind == "integer":
            spec["type"] = "integer"
    elif values := one.get("categoricalValues"):
        spec = {"values": values, "type": "categorical"}
    elif values := one.get("discreteValues"):
        spec = {"values": [_plain(value) for value in values]}
    scale = _SCALES.get(str(one.get("scaleType", "UNIT_LINEAR_SCALE")), "linear")
    if scale != "linear":
        spec["scale"] = scale
    return str(one["parameterName"]), spec


def _plain(value: Any) -> Any:
    """A number from its text, if it is written back the same."""
    for kind in (int, float):
        try:
            number = kind(str(value))
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value


def _remarks(reader: _OldConfig, old: Mapping[str, Any]) -> None:
    if old.get("packageUris") or old.get("pythonModule"):
        reader.notes.append(
            "packageUris and pythonModule: the package is part of the image now; "
            "`builder job submit --package DIR --module NAME` puts a folder of yours into one"
        )
    for name in ("runtimeVersion", "pythonVersion"):
        if old.get(name):
            reader.notes.append(f"{name} {old[name]}: is the image's now, {name} is left out")
    if str(old.get("useChiefInTfConfig", "false")).lower() != "true" and (
        old.get("workerCount") or old.get("scaleTier") in ("STANDARD_1", "PREMIUM_1")
    ):
        reader.notes.append('TF_CONFIG calls the first replica "chief" now; it was "master"')
    if str(old.get("enableWebAccess", "false")).lower() == "true":
        reader.notes.append("enableWebAccess: left out; an interactive shell is asked for by hand")
    if "encryptionConfig" in old:
        reader.notes.append("encryptionConfig: left out; set encryptionSpec on the rendered job")


# --- the result -----------------------------------------------------------------------------------


def _checked(reader: _OldConfig, job: dict[str, Any], source: Path) -> Converted:
    """The text of the job. It has to be readable; what makes it unreadable is in the old file."""
    order = [name for name in description.Job.model_fields if name in job]
    text = yamlfile.dump(
        {name: job[name] for name in order},
        f"Converted from {source.name} of AI Platform.\n" + "\n".join(reader.notes),
    )
    name = re.sub(r"[^a-z0-9]+", "-", source.stem.lower()).strip("-") or "converted"
    try:
        read = description.parse(text, Path(f"{name if name[0].isalpha() else 'job'}.yaml"))
    except InputError as error:
        raise InputError(f"{source}: what it says today: {error.message}", error.fix) from None
    for pool in read.pools:
        placed = machines.place(
            pool.machine,
            pool.accelerator,
            pool.accelerators,
        )
        if read.region:
            try:
                machines.check_region(placed, read.region)
            except InputError as error:
                reader.notes.append(f"{error.message}: {error.fix}")
    head = [f"Converted from {source.name} of AI Platform.", *dict.fromkeys(reader.notes)]
    text = yamlfile.dump({name: job[name] for name in order}, "\n".join(head))
    return Converted(text, tuple(dict.fromkeys(reader.notes)))
