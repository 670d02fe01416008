"""Is anything in the image that should not be? Secrets, caches, root, and files beyond the locks.

The files are read inside the image (builder/prove/probes/contents.py). Its configuration, its
history and its single layers are read here: a layer keeps what a later one deletes or overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.core.confidential import secret_in
from builder.devicecode.pruning.prune import PRUNED
from builder.image.plan import Environment, site_packages
from builder.prove.receipts import Defect
from builder.prove.session import APP, FOLDER, Session
from builder.prove.suite import Answer, Check, probed

PROBE = "builder.prove.probes.contents"
IMPORTS = (
    "builder.core.confidential",
    "builder.core.secret_rules",
    "builder.prove.probes.accounts",
)


def run(session: Session) -> Answer:
    """Look at every file as root, then at what the image says about itself."""
    subject = session.subject
    own = subject.spec.has_own_base
    request = {
        "user": session.config.get("User") or "",
        "python": subject.stack.python if own else "",
        "packages": dict(subject.packages),
        "strict": own,
        "skip": [FOLDER],
        "debian": sorted(subject.debian),
        "own": _own(session) if own else [],
        "program": APP,
        "environment": dict(
            variable.split("=", 1)
            for variable in session.config.get("Env") or ()
            if "=" in variable
        ),
    }
    run = session.probe(PROBE, request, as_root=True, imports=IMPORTS)
    defects, seen = probed(run)
    history = [str(step.get("CreatedBy", "")) for step in session.image.history()]
    return [*defects, *_in_layers(session, defects), *in_texts(session.config, history)], seen


def _own(session: Session) -> list[str]:
    """Return patterns of the files that the factory writes beside those of locked packages."""
    stack, spec = session.subject.stack, session.subject.spec
    keep = stack.prune.keep if stack.prune else None
    written = Environment(stack.python, spec.user, keep).files
    return [*(f"/{path}" for path in written), f"{site_packages(stack.python)}/*/{PRUNED}"]


def _in_layers(session: Session, visible: Sequence[Defect]) -> Iterator[Defect]:
    """Yield the secrets in layers, but for those that a container sees: they are named already."""
    for secret in session.content.secrets:
        if not any(defect.message.endswith(f": {secret.path}") for defect in visible):
            yield Defect(
                message=f"{secret}; a later layer hides it",
                fix="a layer keeps what a later one deletes: build it again without it, and revoke "
                "it if this image was ever pushed",
            )
    for layer in session.content.unread:
        yield Defect(
            message=f"layer {layer[:19]} could not be read: the engine does not give it out",
            fix="pull or build the image again",
        )


def in_texts(config: Mapping[str, Any], history: Sequence[str]) -> Iterator[Defect]:
    """Yield the secrets in the image's configuration and in the lines of its history."""
    texts = {f"environment ({e.partition('=')[0]})": e for e in config.get("Env") or ()}
    for key, value in (config.get("Labels") or {}).items():
        texts[f"label {key}"] = value
    for number, line in enumerate(history):
        texts[f"history (step {number})"] = line
    for name, text in texts.items():
        kind = secret_in(text.encode(), True, variables=name.startswith("environment"))
        if kind is not None:
            yield Defect(
                message=f"the image's {name} holds {kind}",
                fix="hand it to the build as a secret (never as ARG, ENV or LABEL), revoke it",
            )


CHECK = Check("contents", 5, run)
