"""Rules for secrets: each is known, used, there once, and a version of Secret Manager or a key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from builder.cloudbuild.reader.build import Place
from builder.cloudbuild.reader.rules.report import API, LOCAL, Diagnostics
from builder.cloudbuild.reader.substitutions import Values

MAX_SECRETS, MAX_BYTES = 100, 64 * 1024  # API, InlineSecret.env_map

_VERSION = re.compile(
    r"projects/[^/]+/(locations/[^/]+/)?secrets/[^/]+/versions/[^/]+"
    r"|projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/.+"
)


def secrets(report: Diagnostics, values: Values | None) -> None:
    """Check that secrets and their uses fit together."""
    build = report.build
    _declarations(report)
    used = _uses(report, values)
    for name, version in build.secrets.items():
        place: Place = ("availableSecrets", name)
        if name not in used:
            report.add(place, f"no step uses {name}", f"add secretEnv: [{name}] to a step", API)
        named = report.settled(version, values)
        if (named or not version) and not _VERSION.fullmatch(named):
            report.add(
                place,
                f"{version!r} is not a secret's version",
                "write projects/P/secrets/S/versions/latest",
                API,
            )
    report.limit(
        ("availableSecrets",), len(build.secrets), MAX_SECRETS, "secrets", API, "use fewer"
    )


def _declarations(report: Diagnostics) -> None:
    first: dict[str, str] = {}
    for place, name, kind in _declared(report.file.value):
        if not name:
            report.add(place, "no env", "env: the variable that steps find it in", API)
        elif name in first:
            where = kind if first[name] == kind else f"{first[name]} and of {kind}"
            report.add(
                place,
                f"{name} is the variable of two secrets, of {where}",
                "keep one of the two, or give this one another name",
                API,
            )
        else:
            first[name] = kind
    _encrypted(report)


def _encrypted(report: Diagnostics) -> None:
    """Check the values that the file itself holds, and that each key stands once."""
    value, keys = report.file.value, set[str]()
    inline = value.get("availableSecrets", {}).get("inline", ())
    lists = [
        *((("availableSecrets", "inline", n, "envMap"), one) for n, one in enumerate(inline)),
        *((("secrets", n, "secretEnv"), one) for n, one in enumerate(value.get("secrets", ()))),
    ]
    for place, one in lists:
        for name, text in one.get(place[-1], {}).items():
            size = len(text.rstrip("=")) * 3 // 4  # base64
            fix = "put it into Secret Manager: versionName"
            report.limit((*place, name), size, MAX_BYTES, "bytes", API, fix)
    for n, one in enumerate(value.get("secrets", ())):
        key = one.get("kmsKeyName", "")
        if not one.get("secretEnv"):
            fix = "secretEnv: {NAME: what gcloud kms encrypt made of it}"
            report.add(("secrets", n), "no secretEnv", fix, LOCAL, "warning")
        if key in keys:
            what, fix = f"{key} is the key of two secrets", "put the values into one of the two"
            report.add(("secrets", n, "kmsKeyName"), what, fix, LOCAL, "warning")
        keys.add(key)


def _declared(value: Mapping[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """Each secret of a file: its place, its variable, its kind."""
    available = value.get("availableSecrets", {})
    for n, one in enumerate(available.get("secretManager", ())):
        if one:
            yield ("availableSecrets", "secretManager", n), one.get("env", ""), "Secret Manager"
    for n, one in enumerate(available.get("inline", ())):
        for name in one.get("envMap", {}):
            yield ("availableSecrets", "inline", n, "envMap", name), name, "Cloud KMS"
    for n, one in enumerate(value.get("secrets", ())):
        for name in one.get("secretEnv", {}):
            yield ("secrets", n, "secretEnv", name), name, "Cloud KMS"


def _uses(report: Diagnostics, values: Values | None) -> set[str]:
    """The variables of secrets that the build uses. Each has to be there."""
    build, used = report.build, set[str]()
    spoilt = {one.field.rpartition(".")[2] for one in report.file.problems}  # told already
    common = set(build.options.secret_env)
    lists: list[tuple[Place, tuple[str, ...], set[str]]] = [
        (("options", "secretEnv"), build.options.secret_env, set()),
        *((("steps", one.index, "secretEnv"), one.secret_env, common) for one in build.steps),
    ]
    for at, texts, above in lists:
        seen = set(above)
        for n, text in enumerate(texts):
            name = report.settled(text, values) or text
            if name in seen:
                report.add((*at, n), f"{name} appears twice", "keep one", LOCAL, "warning")
            seen.add(name)
            used.add(name)
            if name not in build.secrets and name not in spoilt and "$" not in name:
                near = difflib.get_close_matches(name, build.secrets, n=1)
                report.add(
                    (*at, n),
                    f"no secret has the variable {name}",
                    f"write {near[0]}"
                    if near
                    else f"availableSecrets: {{secretManager: [{{env: {name}, versionName: "
                    "projects/P/secrets/S/versions/latest}]}",
                    API,
                )
    return used
