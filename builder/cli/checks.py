"""`builder lock --check` and `builder render --check`, which files alone decide.

They need no typer, which is slow to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.cli.common import chosen, out, root, say, settings
from builder.core.errors import CheckFailed


def lock(targets: Sequence[str] = (), as_json: bool = False) -> None:
    from builder.pipeline import committed

    stale = committed.stale(root(), chosen([*targets], not targets))
    if as_json:
        out([vars(staleness) for staleness in stale])
    for staleness in stale:
        say(f"{staleness.file}: {staleness.why}")
    if stale:
        raise CheckFailed(f"stale locks: {len(stale)}", stale[0].fix)


def render(targets: Sequence[str] = (), as_json: bool = False) -> None:
    from builder.image import dockerfile

    differences = dockerfile.differences(root(), rendered(targets))
    if as_json:
        out(differences)
    if differences:
        raise CheckFailed(
            f"{', '.join(differences)}: not what render writes",
            "builder render, then git diff shows what changed",
        )


def rendered(targets: Sequence[str]) -> dict[Path, str]:
    """Return what `builder render` writes, by path; none named are all targets, and Cloud Build's
    files."""
    from builder.image import dockerfile

    settings()  # a mistake in builder.toml is told here, too
    found = dockerfile.load_all(root(), chosen([*targets], not targets))
    texts = dockerfile.texts(root(), found)
    if not targets:
        from builder.cloudbuild import rendered as cloudbuild

        texts |= cloudbuild.texts(root(), found)
    return texts
