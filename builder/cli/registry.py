"""`builder push`, `verify`, `rebuild`, `promote`: proven images in a registry, and their tags."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from builder.cli.common import (
    EngineChoice,
    Json,
    Registry,
    Targets,
    out,
    reporter,
    root,
    say,
    settings,
)
from builder.cli.console import duration, size

if TYPE_CHECKING:
    from builder.pipeline.push import PushedImage


def push(
    targets: Targets = None,
    registry: Registry = None,
    tag: Annotated[list[str] | None, typer.Option(help="An additional tag.")] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Sign with this key: a file that COSIGN_PASSWORD opens"),
    ] = None,
    keyless: Annotated[
        bool, typer.Option("--keyless", help="Sign with this process's OIDC identity (Sigstore).")
    ] = False,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Push proven images, each with its receipt; sign them where a key is named, or --keyless.

    Without TARGET: every target that has a built image. Refuses an image without a valid receipt
    (exit code 4). builder.toml names a key as well: key = "..." in [trust].
    """
    from builder.core.errors import InputError
    from builder.core.settings import KEYLESS
    from builder.engine.discovery import connect
    from builder.pipeline import records
    from builder.pipeline.push import push_target

    if key and keyless:
        raise InputError("--key and --keyless are two ways to sign", "name one of them")
    chosen = settings(registry=registry, engine=engine, key=KEYLESS if keyless else key)
    names = tuple(targets) if targets else records.built_targets(root())
    with reporter() as shown:
        docker = connect(chosen, on_event=shown.on_event)
        pushed = [
            push_target(root(), chosen, docker, name, tag or (), shown.on_event) for name in names
        ]
    for image in pushed:
        show_push(image)
    if as_json:
        out([asdict(image) for image in pushed])


def verify(
    reference: Annotated[str, typer.Argument(help="A reference, or a tag of the registry.")],
    registry: Registry = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A public key whose receipts count; replaces `prove` of builder.toml."),
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="The OIDC identity whose receipts count, instead of a key.")
    ] = None,
    issuer: Annotated[str | None, typer.Option(help="Who vouches for --identity.")] = None,
    suite: Annotated[
        Literal["image"] | None,
        typer.Option(help="Take the receipt of builder prove --push-receipt."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that an image in a registry has a valid receipt, signed by KEY where one is named.

    builder.toml names keys and identities as well: prove = ["..."] in [trust].
    """
    from builder.core.errors import InputError
    from builder.core.settings import Identity
    from builder.pipeline import image_receipt
    from builder.pipeline.verify import verify as check

    chosen = settings(registry=registry)
    if bool(identity) != bool(issuer):
        raise InputError(
            "--identity and --issuer belong together: any issuer can claim any identity",
            "name both, such as --issuer https://accounts.google.com",
        )
    named = [Identity(identity=identity, issuer=issuer)] if identity and issuer else []
    if key and not all(key):
        raise InputError("--key names no file", "name a public key, such as --key keys/prover.pub")
    if signers := (*(key or ()), *named):
        trust = chosen.trust.model_copy(update={"prove": signers})
        chosen = chosen.model_copy(update={"trust": trust})
    with reporter() as shown:
        judge = image_receipt.judge if suite else None
        image = check(reference, chosen, judge=judge, on_event=shown.on_event)
    say(f"{image.reference}: proven on {image.receipt.device}, {image.receipt.made_at}")
    say(f"  signed by {image.signer}" if image.signer else "  no signature was asked for")
    for result in image.receipt.checks:
        say(f"  {result.name} {result.version}: passed")
    if as_json:
        out(
            {
                "reference": image.reference,
                "digest": image.digest,
                "signer": image.signer or None,
                "receipt": image.receipt.model_dump(mode="json"),
            }
        )


def rebuild(
    reference: Annotated[str, typer.Argument(help="A reference, or a tag of the registry.")],
    target: Annotated[str | None, typer.Option(help="Its target; else its tag names it.")] = None,
    registry: Registry = None,
    engine: EngineChoice = None,
    as_json: Json = False,
) -> None:
    """Build an image of a registry again, and compare.

    Every layer is made from locked packages. Exit code 4 names the first layer that differs.
    """
    from builder.core.errors import CheckFailed
    from builder.engine.discovery import connect
    from builder.pipeline import rebuild as again

    chosen = settings(registry=registry, engine=engine)
    with reporter() as shown:
        reached = partial(connect, chosen, on_event=shown.on_event)
        made = again.rebuild(root(), reference, target, chosen, reached, shown.on_event)
    if as_json:
        out(asdict(made))
    if made.difference:
        raise CheckFailed(
            f"{made.reference} is {made.digest}, built again it is {made.rebuilt}: "
            f"{made.difference}",
            f"check out the commit that it was built from; else do not use it: {made.target}",
        )
    say(f"{made.reference}: built again, the same digest {made.digest}")


def promote(
    reference: Annotated[str, typer.Argument(help="A reference or tag; with --back, the tag.")],
    tag: Annotated[str | None, typer.Argument(help="The tag to move, such as production.")] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Move the tag to the image that it led to before.")
    ] = False,
    registry: Registry = None,
) -> None:
    """Move a tag to a proven image, or back.

    builder promote v100-2.21.0-1a2b3c4d5e6f production
    builder promote --back production
    """
    from builder.core.errors import InputError
    from builder.pipeline import tags

    chosen = settings(registry=registry)
    if back == (tag is not None):
        raise InputError(
            "promote takes an image and a tag, or --back and a tag",
            "builder promote v100 production; builder promote --back production",
        )
    with reporter() as shown:
        if tag is None:
            moved = tags.rollback(reference, chosen, on_event=shown.on_event)
        else:
            moved = tags.promote(reference, tag, chosen, on_event=shown.on_event)
    before = f" (was {moved.previous or 'new'})" if moved.moved else ""
    say(f"{moved.tag} -> {moved.reference}{before}")


def show_push(pushed: "PushedImage") -> None:
    """Say what a push sent."""
    if pushed.unchanged:
        say(f"{pushed.reference}: already there, nothing sent")
        return
    say(f"{pushed.reference}: {size(pushed.sent)} sent in {duration(pushed.seconds)}")
    say("  tags " + ", ".join(pushed.tags))
    if pushed.signed:
        say(f"  {len(pushed.signed)} attestations signed")
