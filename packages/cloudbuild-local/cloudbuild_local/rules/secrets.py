"""Rules for secrets: each is declared once, used, and a version of Secret Manager or a key."""

from collections.abc import Iterator

from cloudbuild_local.reader.finding import SCHEMA, Place, suggestion
from cloudbuild_local.rules.report import Report

MAX_SECRETS, MAX_BYTES = 100, 64 * 1024  # API, InlineSecret.env_map

_VERSION = r"projects/[^/]+/(locations/[^/]+/)?secrets/[^/]+/versions/[^/]+"
_KEY = r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/.+"
_KEY_FIX = "write kmsKeyName: projects/P/locations/L/keyRings/R/cryptoKeys/K"


def secrets(report: Report) -> None:
    """Check that secrets and their uses fit together."""
    declared, kinds = list(_declared(report)), dict[str, str]()
    names = {name for _, name, _ in declared}
    used = _uses(report, names)
    for place, name, kind in declared:
        if not name:
            report.error(place, "no env", "env: the variable that steps find it in")
        elif name in kinds:
            both = kind if kinds[name] == kind else f"{kinds[name]} and of {kind}"
            what = f"{name} is the variable of two secrets, of {both}"
            report.error(place, what, "keep one of the two, or give this one another name")
        elif name not in used:
            report.error(place, f"no step uses {name}", f"add secretEnv: [{name}] to a step")
        kinds.setdefault(name, kind)
    report.limit(("availableSecrets",), len(names), MAX_SECRETS, "secrets", "use fewer")
    if "secrets" in report.file.value:
        fix = "move key and values to availableSecrets: {inline: [{kmsKeyName, envMap}]}"
        report.warning(("secrets",), "superseded by availableSecrets", fix, SCHEMA)


def _declared(report: Report) -> Iterator[tuple[Place, str, str]]:
    """Check where each secret comes from. Yield its place, its variable and its kind."""
    available = report.get("availableSecrets")
    for n, secret in enumerate(available.get("secretManager", ())):
        place: Place = ("availableSecrets", "secretManager", n)
        if secret:
            text, fix = secret.get("versionName", ""), "write projects/P/secrets/S/versions/latest"
            report.shape(place, text, _VERSION, "the version of a secret", fix)
            yield place, secret.get("env", ""), "Secret Manager"
    lists = (("availableSecrets", "inline"), "envMap"), (("secrets",), "secretEnv")
    for at, field in lists:
        for n, secret in enumerate(report.get(*at) or ()):
            if secret:
                text = secret.get("kmsKeyName", "")
                report.shape((*at, n), text, _KEY, "a key of Cloud KMS", _KEY_FIX)
            for name, value in secret.get(field, {}).items():
                size, fix = len(value.rstrip("=")) * 3 // 4, "put it into Secret Manager"  # base64
                report.limit((*at, n, field, name), size, MAX_BYTES, "bytes", fix)
                yield (*at, n, field, name), name, "Cloud KMS"


def _uses(report: Report, names: set[str]) -> set[str]:
    """Return the variables of secrets that the build uses. Each has to be declared."""
    build, used = report.build, set[str]()
    reported = {finding.field.rpartition(".")[2] for finding in report.file.findings}
    common = build.options.secret_env
    lists: list[tuple[Place, tuple[str, ...]]] = [(("options", "secretEnv"), common)]
    lists += [(("steps", step.index, "secretEnv"), step.secret_env) for step in build.steps]
    for at, texts in lists:
        for n, text in enumerate(texts):
            name = report.settled(text) or text
            used.add(name)
            if name not in names and name not in reported and "$" not in name:
                version = f"{{env: {name}, versionName: projects/P/secrets/S/versions/latest}}"
                fix = f"availableSecrets: {{secretManager: [{version}]}}"
                fix = suggestion(name, names, fix)
                report.error((*at, n), f"no secret has the variable {name}", fix)
    return used
