"""Is anything in the image that should not be? Secrets, caches, root, packages beyond the locks.

The files are read inside the image (builder/prove/probes/contents.py). Its configuration, its
history and its single layers are read here: a layer keeps what a later one deletes or overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.core.confidential import secret_in
from builder.prove.receipts import Defect
from builder.prove.session import FOLDER, Session
from builder.prove.suite import Answer, Check, probed

PROBE, PATTERNS = "builder.prove.probes.contents", "builder.core.confidential"


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
    }
    run = session.probe(PROBE, request, as_root=True, imports=[PATTERNS])
    defects, seen = probed(run)
    return [*defects, *_in_layers(session, defects), *_in_texts(session)], seen


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


def _in_texts(session: Session) -> Iterator[Defect]:
    """Yield the secrets in the image's configuration and in its history."""
    texts = {f"environment ({e.partition('=')[0]})": e for e in session.config.get("Env") or ()}
    for key, value in (session.config.get("Labels") or {}).items():
        texts[f"label {key}"] = value
    for number, step in enumerate(session.image.history()):
        texts[f"history (step {number})"] = str(step.get("CreatedBy", ""))
    for name, text in texts.items():
        kind = secret_in(text.encode(), configuration=True)
        if kind is not None:
            yield Defect(
                message=f"the image's {name} holds {kind}",
                fix="hand it to the build as a secret (never as ARG, ENV or LABEL), revoke it",
            )


CHECK = Check("contents", 2, run)
