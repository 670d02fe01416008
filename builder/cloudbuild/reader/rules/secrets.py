"""Rules for secrets: each is known, used, and a version of Secret Manager or a key."""

from __future__ import annotations

import difflib
import re

from builder.cloudbuild.reader.build import Place
from builder.cloudbuild.reader.rules.report import API, Diagnostics
from builder.cloudbuild.reader.substitutions import Values

MAX_SECRETS = 100  # API, InlineSecret.env_map


def secrets(report: Diagnostics, values: Values | None) -> None:
    """Check that secrets and their uses fit together."""
    build = report.build
    used = {name for step in build.steps for name in step.secret_env}
    used |= set(build.options.secret_env)
    places: list[tuple[Place, tuple[str, ...]]] = [
        (("steps", step.index, "secretEnv"), step.secret_env) for step in build.steps
    ]
    for at, names in [*places, (("options", "secretEnv"), build.options.secret_env)]:
        for n, name in enumerate(names):
            if name not in build.secrets:
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
    for name, version in build.secrets.items():
        place: Place = ("availableSecrets", name)
        if name not in used:
            report.add(place, f"no step uses {name}", f"add secretEnv: [{name}] to a step", API)
        manager = r"projects/[^/]+/(locations/[^/]+/)?secrets/[^/]+/versions/[^/]+"
        kms = r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/.+"
        named = report.settled(version, values)
        if (named or not version) and not re.fullmatch(f"{manager}|{kms}", named):
            report.add(
                place,
                f"{version!r} is not a secret's version",
                "write projects/P/secrets/S/versions/latest",
                API,
            )
    report.limit(
        ("availableSecrets",), len(build.secrets), MAX_SECRETS, "secrets", API, "use fewer"
    )
