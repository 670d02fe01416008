"""A job of another service as a job's file: AI Platform's config.yaml, its gcloud command, or both,
and what builder/jobs/elsewhere.py knows.

AI Platform ended on 2025-01-31: its jobs are read here and never written. Each field and each flag
is taken over or named with the reason. Sources: ml.v1, TrainingInput; the reference of `gcloud
ai-platform jobs submit training`; AI Platform Training, "Specifying machine types or scale tiers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from builder.core import confidential, filemodel, yamlfile
from builder.core.display import Lines
from builder.core.errors import InputError
from builder.facts import accelerators
from builder.jobs import elsewhere, machines
from builder.jobs.checks import looks_secret
from builder.jobs.description.job import described
from builder.jobs.documents import one_job
from builder.jobs.fields import SAME, TABLE, Field
from builder.jobs.ready import given

_ROLES: Final[Mapping[str, str]] = TABLE["roles"]
_BY_HAND: Final = (
    "write image, machine, accelerators and arguments into a job's file (docs/jobs.md)"
)
_KNOWN: Final = (
    "give a job of AI Platform, Vertex AI, Kubernetes (Job, CronJob, Pod, JobSet, PyTorchJob, "
    "TFJob, JAXJob, MPIJob, TrainJob, Volcano's Job), SkyPilot or xpk workload create; of another "
    f"one {_BY_HAND}"
)
_LOST: Final = re.compile(r"accelerator|gpu|tpu(?!tf)|(limits|requests)\.[\w.-]+/|claims\b")
"""The fields that may name an accelerator, in small letters: also a resource of any device."""
_SENDS: Final = {"ai": ("custom-jobs", "hp-tuning-jobs"), "ai-platform": ("jobs", "local")}
_SENDS["ml-engine"] = _SENDS["ai-platform"]
"""The groups of gcloud whose commands run training jobs."""
_OWN: Final = next(why for why in TABLE["left_out"] if why.startswith("each replica gets its own"))


@dataclass(frozen=True)
class Converted:
    text: str
    changes: tuple[str, ...]
    """What is not as it was."""
    left_out: tuple[str, ...]
    """The fields and flags that are not taken over, each with the reason."""


def convert(
    config: Path | None,
    words: Sequence[str] = (),
    *,
    image: str | None = None,
    region: str | None = None,
    accelerator: str | None = None,
    name: str | None = None,
    targets: Mapping[str, str],
) -> Converted:
    """Return the job of a configuration and of the command that sent it.

    words: `gcloud ai-platform jobs submit training NAME --flag value -- --epochs 3`, or what stood
    after its `--`. image, region: in place of the old ones. accelerator: the one that a cluster's
    job counts without a name. name: that of one of several jobs of the file. targets: the
    accelerator of each target of the project. Raises InputError at the line that is wrong.
    """
    flags, arguments = _parsed(words)
    named = dict(flags).get("config")
    flags = [(flag, text) for flag, text in flags if flag != "config"]
    old = _read(config or (Path(named) if named else None), words, flags, accelerator, name)
    job: dict[str, Any] = _machines(old)
    job |= {new: old.text(was) for was, new in TABLE["fields"].items()}
    job["region"] = region or job["region"]
    job["pass_job_dir"] = job["job_dir"] and "true"
    job["command"] = old.take("masterConfig.containerCommand")
    first = old.take("masterConfig.containerArgs") or []
    job["arguments"] = [*first, *(old.take("args") or []), *arguments]
    if secret := confidential.secret_in(
        "\n".join(map(str, (*(job["command"] or ()), *job["arguments"]))).encode(), True, True
    ):
        fix = "take it out of there, and write environment: {NAME: {secret: NAME}} (docs/jobs.md)"
        raise InputError(f"{old.where}: {secret} stands in the command or its arguments", fix)
    job["environment"] = old.below("environment", but=[*TABLE["left_out"][_OWN], *old.secrets()])
    strategy = (old.text("scheduling.strategy") or "").lower().replace("_", "-")
    strategy = "" if strategy in ("on-demand", "standard") else strategy
    wait = old.text("scheduling.maxWaitDuration") if strategy == "flex-start" else None
    timeout = old.text("scheduling.maxRunningTime")
    job["scheduling"] = given(strategy=strategy, timeout=timeout, max_wait=wait)
    key = old.text("encryptionConfig.kmsKeyName")
    web = old.text("enableWebAccess") == "true"
    job["vertex"] = given(web_access="true" if web else None, encryption_key=key)
    job["kubernetes"] = _section(old, "kubernetes")
    job |= {"labels": old.below("labels"), "study": _study(old)}
    lost = [path for path in old.values if _LOST.search(path.lower())]
    if lost and not {"accelerators", "topology"} & {*job}:
        lost.sort(key=lambda path: ".nodeSelector." in path)  # a resource says it better
        raise old.mistake(lost[0], "names an accelerator that is not known here", _BY_HAND)
    job["image"] = _image(old, job, image, targets)
    written = {name: job[name] for name in described().model_fields if job.get(name)}
    _check(old.where, written)
    left_out = tuple(old.unused())
    lines = [*old.changes, *(f"not taken over: {line}" for line in left_out)]
    kept = ("environment", "labels")  # texts, whatever they look like
    plain = {name: each if name in kept else _plain(each) for name, each in written.items()}
    text = yamlfile.dump(plain, "\n".join([f"Converted from {old.where}.", *lines]))
    return Converted(text, tuple(old.changes), left_out)


def _plain(value: Any) -> Any:
    """Return numbers and booleans as such, where they are written as they stood."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value in ("true", "false"):
        return value == "true"
    whole = isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value)
    return int(value) if whole else value


# --- reading --------------------------------------------------------------------------------------


@dataclass
class _Old:
    values: dict[str, Any]
    """What is not taken yet, by a path such as `masterConfig.acceleratorConfig.count`."""
    where: str
    places: Mapping[str, str]
    """Of a path, where it stood: `config.yaml:3: trainingInput.masterType`, or its flag."""
    changes: list[str] = field(default_factory=list)

    def take(self, path: str) -> Any:
        """Take a value over; None where there is none."""
        return self.values.pop(path, None)

    def text(self, path: str) -> str | None:
        """Take a text over; None where there is none. Raises InputError."""
        value = self.take(path)
        if value is not None and not isinstance(value, str):
            raise self.mistake(path, "expected one value", "write it on the same line")
        return value

    def count(self, path: str, default: int) -> int:
        """Take a number over. Raises InputError."""
        text = self.text(path) or str(default)
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.mistake(path, f"{text[:20]!r} is no number", "write 2")
        return int(text)

    def below(self, path: str, but: Sequence[str] = ()) -> dict[str, Any]:
        """Take all values below a path over, but for some, by the rest of their paths."""
        names = [name for name in self.values if name.startswith(f"{path}.")]
        names = [name for name in names if name[len(path) + 1 :] not in but]
        return {name[len(path) + 1 :]: self.take(name) for name in names}

    def secrets(self) -> list[str]:
        """Return the variables whose values look like secrets: a new file has none."""
        begins = "environment."
        texts = {n: each for n, each in self.values.items() if isinstance(each, str)}
        named = {n.removeprefix(begins): each for n, each in texts.items() if n.startswith(begins)}
        return [name for name, value in named.items() if looks_secret(name, value)]

    def place(self, path: str) -> str:
        return self.places.get(path, f"{self.where}: {path}")

    def mistake(self, path: str, what: str, fix: str) -> InputError:
        return InputError(f"{self.place(path)}: {what}", fix)

    def unused(self) -> Iterator[str]:
        for path in self.values:
            names = path.split(".")
            reasons = [why for why, fields in TABLE["left_out"].items() if {*names} & {*fields}]
            yield f"{self.place(path)}: {reasons[0] if reasons else 'not known'}"


def _parsed(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the flags of a gcloud or xpk command with their values, and the trainer's words."""
    if not words or not (words[0] == "gcloud" or _is_xpk(words)):
        return [], list(words)
    before = takewhile(lambda word: not word.startswith("-"), words[1:])
    groups = [word for word in before if word not in ("alpha", "beta")]
    sends = {*groups[1:]} & {*_SENDS.get(groups[0], ())} if groups else {"gcloud"}
    if not (sends if words[0] == "gcloud" else groups[-2:] == ["workload", "create"]):
        raise InputError(f"{words[0]} {' '.join(groups)}: sends no training job", _KNOWN)
    end = words.index("--") if "--" in words else len(words)
    flags, rest = list[tuple[str, str]](), list(words[:end])
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--"):
            continue
        alone = rest[0].startswith("--") if rest else _is_xpk(words)
        if not equals and not alone and name[2:] not in TABLE["switches"]:
            if not rest:
                raise InputError(f"{name}: has no value", f"write {name}=VALUE")
            value = rest.pop(0)
        flags.append((name[2:], value or "true"))
    return flags, list(words[end + 1 :])


def _is_xpk(words: Sequence[str]) -> bool:
    return any(Path(word).name in ("xpk", "xpk.py") for word in words[:2])


def _read(
    config: Path | None,
    words: Sequence[str],
    flags: Sequence[tuple[str, str]],
    accelerator: str | None,
    name: str | None,
) -> _Old:
    """Return the file with the flags over it: what a flag said won. Raises InputError."""
    where = str(config or next(iter(words), "gcloud"))
    text = filemodel.read_text(config, where) if config else ""
    if text.startswith("#!") or re.search(r"^#SBATCH ", text, re.MULTILINE):
        raise InputError(f"{where}: a script: no job is written so", _KNOWN)
    document, inside, others = one_job(text, where, name)
    if document.problems:
        raise filemodel.error(where, document.problems)
    value: Any = document.value
    for step in inside:
        value = value[step]
    value = elsewhere.in_camel_case(value)
    if not (elsewhere.is_job(value) or (value == {} and flags)):
        raise InputError(f"{where}: no job is written so", _KNOWN)
    values, places = dict[str, Any](), dict[str, str]()
    try:
        found = tuple(elsewhere.fields(value, where, accelerator))
    except (AttributeError, LookupError, TypeError, ValueError):  # a text for a mapping, and such
        raise InputError(f"{where}: no job is written so", _BY_HAND) from None
    for each in found:
        if each.value is not None:
            steps = [int(step) if step.isdigit() else step for step in each.was.split(".")]
            values[each.path] = each.value
            places[each.path] = f"{where}:{document.line(*inside, *steps)}: {each.was}"
    for each in _flag_fields(words, flags):
        values[each.path], places[each.path] = each.value, each.was
    for line, what in others.items():
        path = f"another document.{line}.{what}"
        values[path], places[path] = what, f"{where}:{line}: {what}"
    return _Old(values, where, places)


def _flag_fields(words: Sequence[str], flags: Sequence[tuple[str, str]]) -> Iterator[Field]:
    """Yield what the flags of a command fill. Raises InputError."""
    if _is_xpk(words):
        yield from elsewhere.of_xpk(flags)
        return
    pools = 0
    for flag, text in flags:
        if flag == "worker-pool-spec":
            if not pools:
                yield Field("scaleTier", "CUSTOM", "--worker-pool-spec")
            alone = [name for name, _ in flags].count(flag) == 1
            yield from elsewhere.of_pool_flag(pools, text, alone)
            pools += 1
        elif flag in ("args", "command"):
            path = "masterConfig.containerCommand" if flag == "command" else "args"
            comma = re.match(r"\^(.+?)\^", text)
            parts = text[comma.end() :].split(comma[1]) if comma else text.split(",")
            yield Field(path, parts, f"--{flag}")
        elif "local" not in words[:4] or flag != "distributed":
            for path, inner in _flag_paths(flag, text):
                yield Field(path, inner, f"--{flag}")
    if "local" in words[:4]:  # one process of each kind on one machine, by default two of both
        yield from elsewhere.of_local_train(dict(flags))


def _flag_paths(flag: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the paths that a flag fills, with the values. Raises InputError."""
    name = TABLE["flags"].get(flag) or re.sub(r"-(\w)", lambda match: match[1].upper(), flag)
    for end, path in TABLE["flag_ends"].items():
        name = re.sub(rf"(?<=er){end}$", path, name)
    if flag != "labels" and not flag.endswith("-accelerator"):
        yield name, text
        return
    for part in text.split(","):
        key, _, value = part.partition("=")
        if not value or (flag != "labels" and key not in ("count", "type")):
            example = "name=value" if flag == "labels" else "count=1,type=nvidia-tesla-v100"
            raise InputError(f"--{flag} {text}: not what gcloud took", f"write --{flag} {example}")
        yield f"{name}.{key}", value


# --- machines -------------------------------------------------------------------------------------


def _machines(old: _Old) -> dict[str, Any]:
    """Return machine, accelerators and replicas. Raises InputError."""
    tiers, tier = TABLE["tiers"], old.text("scaleTier")
    tier = tier and tier.upper().replace("-", "_")  # gcloud takes basic-gpu
    if tier is None:
        old.changes.append("no scaleTier: the service took BASIC, a machine without an accelerator")
    if tier in (None, *tiers):
        for path in [name for name in old.values if re.fullmatch(r"[a-zA-Z]+(Type|Count)", name)]:
            old.changes.append(f"{old.place(path)}: {tier} brings its own machines")
            del old.values[path]
        old.values |= tiers[tier or "BASIC"]
    elif tier != "CUSTOM":
        known = ", ".join((*tiers, "CUSTOM"))
        raise old.mistake("scaleTier", f"{tier!r} was no scale tier", f"write one of {known}")
    if "masterType" not in old.values:
        raise old.mistake("scaleTier", "CUSTOM needs masterType", "add masterType: n1-standard-8")
    if old.values.get("workerType") == "cloud_tpu":  # today the TPU's machine runs the program
        old.changes.append(f"{old.take('masterType')} is gone: the TPU's machine runs the program")
        old.values["masterType"] = old.take("workerType")
        carried = old.below("workerConfig.acceleratorConfig")
        old.values |= {f"masterConfig.acceleratorConfig.{name}": carried[name] for name in carried}
        old.count("workerCount", 1)
    chief, replicas = _machine(old, "master"), dict[str, Any]()
    for role, name in _ROLES.items():
        count = old.count(f"{role}Count", 0)
        if count and old.values.get(f"{role}Type") == SAME:
            old.take(f"{role}Type")
            replicas[name] = {"count": count}
            continue
        if count and f"{role}Type" not in old.values:
            raise old.mistake(f"{role}Count", f"needs {role}Type", f"add {role}Type")
        if count:
            none = (
                {"accelerators": "none"}
                if "accelerators" in chief and role != "parameterServer"
                else {}
            )
            replicas[name] = {"count": count, **none, **_machine(old, role)}
    return {**chief, "replicas": replicas}


def _machine(old: _Old, role: str) -> dict[str, Any]:
    """Return machine and accelerators of one role, on what is offered today. Raises InputError."""
    path, config = f"{role}Type", f"{role}Config.acceleratorConfig"
    was = old.text(path) or ""
    machine, *carried = TABLE["machines"].get(was, [was])
    machine = TABLE["successors"].get(machine, machine)
    name, count = carried or (None, "0")
    place, topology = old.place(path), old.text(f"{config}.topology")
    if f"{config}.type" in old.values:
        name, count = old.text(f"{config}.type"), str(old.count(f"{config}.count", 1))
    try:
        if name is None:
            placed = machines.place(machine or "n1-standard-4", topology=topology)
        else:
            device = machines.device(re.sub(r"_POD$", "", name), machine)
            if device.instead:
                old.changes.append(f"{place}: {device.name} {device.refused}")
                device = machines.devices()[device.instead]
            placed = machines.nearest(machine, device, int(count))
    except InputError as error:
        raise old.mistake(path, error.message, error.fix) from None
    if was != placed.machine or (name and int(count) != placed.count):
        nearest = f"{was}: {placed} is the nearest now"
        old.changes.append(f"{place}: {nearest if was else f'no machine is named: {placed}'}")
    if placed.device is None:
        return {"machine": placed.machine}
    if placed.topology:
        return {"machine": placed.machine, "topology": placed.topology}
    return {"machine": placed.machine, "accelerators": f"{placed.count} x {placed.device.name}"}


def _image(old: _Old, job: Mapping[str, Any], image: str | None, targets: Mapping[str, str]) -> str:
    """Return the image: the one that is named, else a target for what the chief carries."""
    named = old.text("masterConfig.imageUri")
    for role in _ROLES:
        if old.values.get(f"{role}Config.imageUri") == named:
            old.take(f"{role}Config.imageUri")
    if image or named:
        return str(image or named)
    name = job["accelerators"].split(" x ")[1] if "accelerators" in job else "CPU"
    name = "TPU" if "topology" in job else name
    carried = accelerators.find(name)
    wanted = "TPU" if carried.kind == "tpu" else carried.name
    fitting = [target for target, accelerator in targets.items() if accelerator == wanted]
    what = "the old job named no image"
    if not fitting:
        raise InputError(
            f"{old.where}: {what}, and no target of the project is for {wanted}",
            "give --image with the image that stands in for it",
        )
    old.changes.append(f"{what}: {fitting[0]} is for {wanted}")
    return fitting[0]


# --- the study ------------------------------------------------------------------------------------


def _study(old: _Old) -> dict[str, Any] | None:
    """Return the study of the hyperparameters; None for none. Raises InputError."""
    top = "hyperparameters"
    if not any(path.startswith(f"{top}.") for path in old.values):
        return None
    study: dict[str, Any] = {"metric": TABLE["metric"]}
    for was, new in TABLE["study"].items():
        if value := old.text(f"{top}.{was}"):
            study[new] = value.lower() if new == "goal" else value
    study["algorithm"] = TABLE["words"].get(old.text(f"{top}.algorithm"), "bayesian")
    if old.text(f"{top}.enableTrialEarlyStopping") == "true":
        study["early_stopping"] = "curve"
    parameters: dict[str, Any] = {}
    while f"{top}.params.{len(parameters)}.parameterName" in old.values:
        path = f"{top}.params.{len(parameters)}"
        name = old.text(f"{path}.parameterName") or ""
        parameters[name] = _parameter(old, path)
    return {**study, "parameters": parameters}


def _parameter(old: _Old, path: str) -> dict[str, Any]:
    kind = (old.text(f"{path}.type") or "").lower()
    written = old.text(f"{path}.scaleType")
    scale = TABLE["words"].get(written)
    if written == "UNIT_REVERSE_LOG_SCALE":
        old.changes.append(f"{old.place(path)}: a reverse log scale is a log scale now")
    if kind in ("categorical", "discrete"):
        spec: dict[str, Any] = {"values": old.take(f"{path}.{kind}Values")}
    else:
        low, high = (old.text(f"{path}.{end}Value") or "" for end in ("min", "max"))
        if low == high:
            old.changes.append(f"{old.place(path)}: a range of one value is that value now")
            spec = {"values": [low]}
        else:  # whole ends are integers
            fraction = ".0" if kind == "double" and low.isdigit() and high.isdigit() else ""
            spec = {"min": f"{low}{fraction}", "max": high}
    return spec | ({"scale": scale} if scale and kind != "categorical" else {})


def _section(old: _Old, name: str) -> dict[str, Any]:
    """Take over what a backend's section has a field for. What the field refuses stays, and is
    named."""
    section: Any = described().model_fields[name].annotation
    taken = old.below(name)
    for field_name in list(taken):
        try:
            section.model_validate({field_name: taken[field_name]})
        except ValidationError:
            old.values[f"{name}.{field_name}"] = taken.pop(field_name)
    return taken


def _check(where: str, written: Mapping[str, Any]) -> None:
    """Raise InputError for what makes the new job unreadable; its lines are written nowhere."""
    document = yamlfile.parse(yamlfile.dump(written), where)
    try:
        described().model_validate(document.value)
    except ValidationError as error:
        mistakes = filemodel.mistakes(document, error.errors(), described())
        lines = [f"{where}: {mistake.field}: {mistake.what}" for mistake in mistakes]
        raise InputError(Lines.of(lines), mistakes[0].fix) from None
