"""An old AI Platform job as a job of today, with a ledger of every field.

The input is the file of gcloud's `--config` (a Job with its `trainingInput`) and the flags beside
it. The new job is rendered in the old format again, and each field is compared with what was read.
An unknown field is refused at its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from builder.core import findings, yamlfile
from builder.core.errors import InputError
from builder.facts import accelerators
from builder.jobs import description, ledger, machines
from builder.jobs.aiplatform import cluster, flags, presets, tuning
from builder.jobs.aiplatform import render as legacy
from builder.jobs.aiplatform.oldjob import OldJob
from builder.jobs.checks import place
from builder.jobs.description import Job
from builder.jobs.ledger import Imported, Line
from builder.jobs.ready import Image, Ready

_KNOWN: Final = (
    *(f"{prefix}{part}" for prefix in cluster.PREFIXES for part in ("Type", "Config")),
    *(f"{prefix}Count" for prefix in cluster.ROLES),
    *("scaleTier", "args", "region", "jobDir", "serviceAccount", "network", "scheduling"),
    *("hyperparameters", "packageUris", "pythonModule", "runtimeVersion", "pythonVersion"),
    *("useChiefInTfConfig", "enableWebAccess", "encryptionConfig"),
)
"""Source: ml.v1, TrainingInput."""
_WRITTEN_BY_THE_SERVICE: Final = (
    *("createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "etag"),
    "jobPosition",
)
_JOB: Final = ("trainingInput", "jobId", "labels", *_WRITTEN_BY_THE_SERVICE)
_FIX: Final = "name the file that gcloud's --config took"
_CLUSTERS: Final = [name for name, preset in presets.PRESETS.items() if len(preset.pools) > 1]
_PACKAGE: Final = (
    "the package is part of the image now; `builder job submit --package DIR --module NAME` puts a "
    "folder of yours into one"
)


@dataclass(frozen=True)
class Beside:
    """What stood beside the file, on the command line of the time.

    image: the image that stands in for the old job's. flags: of gcloud, by the names in
    flags.FIELDS. arguments: what came after `--`. targets: the accelerator of each target of the
    project, to propose an image where the old job named none.
    """

    image: str | None = None
    flags: Mapping[str, str | None] = field(default_factory=dict)
    labels: str | None = None
    arguments: Sequence[str] = ()
    targets: Mapping[str, str] = field(default_factory=dict)


_ALONE: Final = Beside()


def convert_file(config: Path | None, beside: Beside) -> Imported:
    """`convert` for a file on this machine, or for flags alone. Raises InputError."""
    if config is None:
        return convert("", Path("flags"), beside)
    try:
        text = findings.read_text(config, str(config))
    except InputError as error:
        raise InputError(error.message, _FIX) from None
    return convert(text, config, beside)


def convert(text: str, source: Path, beside: Beside = _ALONE) -> Imported:
    """The job of an old configuration and of the flags beside it.

    Raises InputError at the line that is wrong.
    """
    reader, whole, old = _read(text, source, beside)
    job: dict[str, Any] = {"image": ""}
    if "region" in old:
        job["region"] = reader.text(old["region"], ("region",))
    else:
        reader.notes.append("no region: give --region, or add region: to the job")
    job |= cluster.cluster(reader, old)
    job["image"] = _image(reader, old, beside, job)
    if every := [*job.get("arguments", []), *beside.arguments]:
        job["arguments"] = every
    job |= _rest(reader, old)
    _remarks(reader, old, several="replicas" in job or job.get("preset") in _CLUSTERS)
    if tuned := old.get("hyperparameters"):
        job["study"] = tuning.study(reader, tuned)
    if found := {**(whole.get("labels") or {}), **flags.labels(beside.labels)}:
        job["labels"] = found
        reader.fates |= {
            f"labels.{name}": Line(f"labels.{name}", "kept") for name in whole.get("labels") or {}
        }
    return _written(reader, job, source, whole)


def _read(
    text: str, source: Path, beside: Beside
) -> tuple[OldJob, Mapping[str, Any], Mapping[str, Any]]:
    """The reader, the whole Job of the file, and its trainingInput with the flags in it."""
    document = yamlfile.parse(text, str(source))
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{source}:{problem.line}: {problem.field}: {problem.what}", problem.fix)
    reader, value = OldJob(document, str(source)), document.value
    whole: Mapping[str, Any] = {}
    if isinstance(value, dict) and "trainingInput" in value:
        whole = reader.only(value, _JOB, ())
        reader.top = ("trainingInput",)
        value = value["trainingInput"]
    old = dict(reader.only(value, _KNOWN, ()))
    given = flags.given(beside.flags)
    for path, (_, found) in given.items():
        if len(path) == 2:
            inner = reader.only(old.get(path[0], {}), (*cluster.CONFIG, "kmsKeyName"), path[:1])
            old[path[0]] = {**inner, path[1]: found}
        else:
            old[path[0]] = found
    if not old:
        raise InputError(f"{source}: no trainingInput", _FIX)
    reader.flags = {path: flag for path, (flag, _) in given.items()}
    before = dict(ledger.fields(value))
    for path, (flag, found) in given.items():
        reader.fates[flag] = Line(flag, "kept")
        written = ".".join((*reader.top, *path))
        if (was := before.get(".".join(path), found)) != found:
            reader.fates[written] = Line(written, "changed", f"{was!r}, but {flag} won over it")
    return reader, whole, old


# --- image ----------------------------------------------------------------------------------------


def _image(reader: OldJob, old: Mapping[str, Any], beside: Beside, job: Mapping[str, Any]) -> str:
    """The chief's image; roles with another one have it in `replicas`."""
    path = ("masterConfig", "imageUri")
    named = old.get("masterConfig", {}).get("imageUri")
    if beside.image:
        if named:
            reader.tell("changed", path, f"--image says {beside.image}")
        return beside.image
    if named:
        if re.match(r"(?:[a-z]+\.)?gcr\.io/", named):
            reader.notes.append(
                f"{named}: Container Registry takes no pushes since 2025-03-18; its names are "
                "served by Artifact Registry, where the image was moved"
            )
        reader.tell("kept", path, came="image")
        return str(named)
    carried = _carried(job)
    fitting = [one for one, accelerator in beside.targets.items() if accelerator == carried]
    how = "a runtime version and a package" if old.get("runtimeVersion") else "no image"
    if not fitting:
        raise InputError(
            f"{reader.where}: the old job named {how}, and no target of the project is for "
            f"{carried}",
            "give --image with the image that stands in for it",
        )
    reader.notes.append(f"the old job named {how}: {fitting[0]} is for {carried}")
    return fitting[0]


def _carried(job: Mapping[str, Any]) -> str:
    """What the chief carries, by the name that targets use."""
    if job.get("preset"):
        name = presets.PRESETS[str(job["preset"])].pools[0].accelerator
    else:
        name = str(job["accelerators"]).split(" x ")[1] if "accelerators" in job else None
    found = accelerators.find(name) if name else None
    if found is None:
        return "CPU"
    return "TPU" if found.kind == "tpu" else found.name


# --- the rest of trainingInput --------------------------------------------------------------------


def _rest(reader: OldJob, old: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, new in (("serviceAccount", "service_account"), ("network", "network")):
        if name in old:
            found[new] = reader.text(old[name], (name,))
            reader.tell("kept", (name,), came=new)
    if "jobDir" in old:
        found |= {"job_dir": reader.text(old["jobDir"], ("jobDir",)), "pass_job_dir": True}
        why = "--job-dir is passed as before, and AIP_MODEL_DIR is set, too"
        reader.tell("kept", ("jobDir",), why, came="job_dir")
    plan = reader.only(
        old.get("scheduling", {}), ("maxRunningTime", "maxWaitTime", "priority"), ("scheduling",)
    )
    if longest := plan.get("maxRunningTime"):
        found["scheduling"] = {"timeout": longest}
        reader.tell("kept", ("scheduling", "maxRunningTime"), came="scheduling.timeout")
    for name in ("maxWaitTime", "priority"):
        if name in plan:
            why = "has no counterpart for standard machines"
            reader.tell("dropped", ("scheduling", name), why)
    own: dict[str, Any] = {}
    if _true(old, "enableWebAccess"):
        own["web_access"] = True
    if "enableWebAccess" in old:
        reader.tell("kept", ("enableWebAccess",), came="vertex.web_access")
    if "encryptionConfig" in old:
        path = ("encryptionConfig", "kmsKeyName")
        inner = reader.only(old["encryptionConfig"], path[1:], path[:1])
        own["encryption_key"] = inner.get("kmsKeyName")
        reader.tell("kept", path, came="vertex.encryption_key")
    return found | ({"vertex": own} if own else {})


def _true(old: Mapping[str, Any], name: str) -> bool:
    return str(old.get(name, "false")).lower() == "true"


def _remarks(reader: OldJob, old: Mapping[str, Any], several: bool) -> None:
    for name in ("packageUris", "pythonModule"):
        if name in old:
            reader.tell("dropped", (name,), _PACKAGE)
    for name in ("runtimeVersion", "pythonVersion"):
        if name in old:
            reader.tell("dropped", (name,), "is the image's now")
    if "useChiefInTfConfig" in old and (_true(old, "useChiefInTfConfig") or not several):
        reader.tell("kept", ("useChiefInTfConfig",))
    elif several:
        why = 'TF_CONFIG calls the first replica "chief" now; it was "master"'
        if "useChiefInTfConfig" in old:
            reader.tell("changed", ("useChiefInTfConfig",), why)
        else:
            reader.notes.append(why)


# --- the result -----------------------------------------------------------------------------------


def _written(
    reader: OldJob,
    job: dict[str, Any],
    source: Path,
    whole: Mapping[str, Any],
) -> Imported:
    told = {name: job[name] for name in description.Job.model_fields if name in job}
    read = _checked(reader, told, source)
    for pool in read.pools:
        if read.region:
            try:
                machines.check_region(place(pool), read.region)
            except InputError as error:
                reader.notes.append(f"{error.message}: {error.fix}")
    lines = tuple(_ledger(reader, read, whole))
    notes = tuple(dict.fromkeys(reader.notes))
    said = [f"{line.fate}: {line.field}: {line.why}" for line in lines if line.fate != "kept"]
    head = [f"Converted from {source.name} of AI Platform.", *notes, *said]
    return Imported(yamlfile.dump(told, "\n".join(head)), lines, notes)


def _checked(reader: OldJob, told: Mapping[str, Any], source: Path) -> Job:
    """The job of the new text. What makes it unreadable stands in the old file: each mistake is
    told there, in the words of the new one. Raises InputError."""
    text = yamlfile.dump(told)
    document = yamlfile.parse(text, str(source))
    try:
        Job.model_validate(document.value)
    except ValidationError as error:
        mistakes = findings.problems(document, error.errors(), Job)
        found = [f"{_origin(reader, one.field)}: {one.what} -> {one.fix}" for one in mistakes]
        if len(found) == 1:
            raise InputError(found[0].rpartition(" -> ")[0], mistakes[0].fix) from None
        raise InputError("\n".join(found), f"correct these {len(found)} fields") from None
    return description.parse(text, ledger.named(source))


def _origin(reader: OldJob, field: str) -> str:
    """Where the old file says what a field of the new one says."""
    parts = field.split(".")
    for end in range(len(parts), 0, -1):
        if (path := reader.came.get(".".join(parts[:end]))) is not None:
            return reader.place(path)
    if parts[0] == "labels":
        line = reader.document.line("labels", *parts[1:])
        return f"{reader.where}:{line}: {field}"
    if parts[0] in ("study", "region"):
        return reader.place(("hyperparameters" if parts[0] == "study" else "region",))
    return f"{reader.where}: {field}"


def _ledger(reader: OldJob, job: Job, whole: Mapping[str, Any]) -> list[Line]:
    """What became of each field of the file and of each flag.

    A field of which nothing else is known is compared with the new job in the old format.
    """
    own = {pool.role: Image(job.of(pool.role).image) for pool in job.pools}
    placements = tuple(place(pool) for pool in job.pools)
    ready = Ready(job, Image(job.image), job.region or "", placements, images=own)
    again = dict(ledger.fields(legacy.training_input(ready)))
    found = []
    written = reader.document.value
    inside = written.get("trainingInput", written) if isinstance(written, dict) else {}
    for name, value in ledger.fields(inside):
        shown = ".".join((*reader.top, name))
        if told := _known(reader.fates, shown):
            found.append(Line(shown, told.fate, told.why))
        elif name not in again:
            found.append(Line(shown, "dropped", f"{value!r}: a job's file does not have it"))
        elif _same(value, again[name]):
            found.append(Line(shown, "kept"))
        else:
            found.append(Line(shown, "changed", f"{value!r} becomes {again[name]!r}"))
    for name, _ in ledger.fields({k: v for k, v in whole.items() if k != "trainingInput"}):
        if name == "jobId":
            found.append(Line(name, "dropped", "the factory names each job itself"))
        elif name in reader.fates:
            found.append(reader.fates[name])
        else:
            found.append(Line(name, "dropped", "the service wrote it"))
    return [*found, *(line for name, line in reader.fates.items() if name.startswith("--"))]


def _known(fates: Mapping[str, Line], name: str) -> Line | None:
    """What is known of a field, or of the one that it is a part of."""
    while name:
        if name in fates:
            return fates[name]
        name = re.sub(r"(\[\d+\]|\.?[^.\[\]]+)$", "", name)
    return None


def _same(old: Any, new: Any) -> bool:
    """Whether the text of an old field says what the new one says."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(new, bool):
        return str(old).lower() == str(new).lower()
    try:
        return float(old) == float(new)
    except (TypeError, ValueError):
        return str(old) == str(new)
