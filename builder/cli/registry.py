"""`builder push`, `verify`, `rebuild`, `promote`, `sign`: proven images in a registry."""

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from builder.cli import options
from builder.cli.common import out, reporter, root, say, settings
from builder.cli.options import argument, flag, option
from builder.core.display import duration, size
from builder.core.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.pipeline.model import Model
    from builder.pipeline.push import PushedImage
    from builder.pipeline.verify import Verification


def push(
    targets: list[str] | None = options.TARGETS,
    registry: str | None = options.REGISTRY,
    tag: list[str] | None = option("An additional tag."),
    key: str | None = option("Sign with this key: a file that COSIGN_PASSWORD opens"),
    keyless: bool = flag("--keyless", "Sign with this process's OIDC identity (Sigstore)."),
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Push proven images, each with its receipt; sign them where a key is named, or --keyless.

    Without TARGET: every target that has a built image. Refuses an image without a valid receipt
    (exit code 4). builder.toml names a key as well: key = "..." in [trust].
    """
    from builder.config import targets as projects
    from builder.core.settings import KEYLESS
    from builder.engine.discovery import connect
    from builder.pipeline import records
    from builder.pipeline.push import push_target

    if key and keyless:
        raise InputError("--key and --keyless are two ways to sign", "name one of them")
    chosen = settings(registry=registry, engine=engine, key=KEYLESS if keyless else key)
    names = tuple(targets) if targets else records.built_targets(root())
    with reporter() as progress:
        docker = connect(chosen, on_event=progress.on_event)
        pushed = [
            push_target(target, chosen, docker, tag or (), progress.on_event)
            for target in projects.all_of(root(), names)
        ]
    for image in pushed:
        show_push(image)
    if as_json:
        out([asdict(image) for image in pushed])


def verify(
    reference: str = options.REFERENCE,
    registry: str | None = options.REGISTRY,
    key: list[str] | None = option(
        "A public key whose receipts count; replaces `prove` of builder.toml."
    ),
    identity: str | None = option("The OIDC identity whose receipts count, instead of a key."),
    issuer: str | None = option("Who vouches for --identity."),
    suite: Literal["image"] | None = option("Take the receipt of builder prove --push-receipt."),
    require: Literal["gpu"] | None = option("Ask for a run on its GPU, too (prove --on-gpu)."),
    as_json: bool = options.JSON,
) -> None:
    """Check that an image in a registry has a valid receipt, signed by KEY where one is named. Of
    the folder of a job, that its model is the one that it wrote, in such an image.

    builder.toml names keys and identities as well: prove = ["..."] in [trust].
    """
    from builder.core.settings import Identity
    from builder.pipeline import model
    from builder.pipeline.verify import verify as check
    from builder.prove import suites

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
    if model.is_one(reference):
        if require:
            raise InputError("--require gpu is about an image", "name the image, not the folder")
        _verify_model(Path(reference), chosen, as_json)
        return
    with reporter() as progress:
        asked_for, gpu = suites.IMAGE if suite else None, require == "gpu"
        image = check(
            reference, chosen, root(), suite=asked_for, on_gpu=gpu, on_event=progress.on_event
        )
    _say_image(image)
    if as_json:
        ran = image.on_gpu and image.on_gpu.receipt
        out(
            {
                "reference": image.reference,
                "digest": image.digest,
                "signer": image.signer or None,
                "receipt": image.receipt.model_dump(mode="json"),
                "on_gpu": ran.model_dump(mode="json") if ran else None,
            }
        )


def _say_image(image: "Verification") -> None:
    say(f"{image.reference}: {image.receipt.verdict}, {image.receipt.made_at}")
    say(f"  signed by {image.signer}" if image.signer else "  no signature was asked for")
    for result in image.receipt.checks:
        say(f"  {result.name} {result.version}: {result.status}")
    if image.on_gpu and (ran := image.on_gpu.receipt):
        by = f"; signed by {image.on_gpu.signer}" if image.on_gpu.signer else ""
        say(f"  on its GPU: {ran.seen('gpu').get('note')}, {ran.made_at}{by}")


def _verify_model(folder: Path, chosen: "Settings", as_json: bool) -> None:
    from builder.pipeline import model

    with reporter() as progress:
        found = model.check(folder, chosen, root(), progress.on_event)
    _say_model(found)
    if as_json:
        image = {"reference": found.image.reference, "signer": found.image.signer or None}
        signed = {"model": str(folder), "model_signer": found.signer or None}
        out({**signed, "provenance": found.content, **image})


def _say_model(found: "Model") -> None:
    say(f"{found.folder}: {found.files} files are those that the job wrote")
    say(f"  signed by {found.signer}" if found.signer else "  no signature was asked for")
    say(f"  trained in {found.image.reference}, {found.image.receipt.verdict}")


def rebuild(
    reference: str | None = argument("An image of the registry; none: the new layers.", "REF"),
    target: str | None = option("REF's target; else its tag names it."),
    everything: bool = flag("--all", "Every layer of images/layers.lock, not the new ones."),
    against: str | None = options.AGAINST,
    sign: bool = flag("--sign", "Sign the lines of the layers that were made."),
    key: str | None = option("Sign with this key."),
    registry: str | None = options.REGISTRY,
    engine: str | None = options.ENGINE,
    as_json: bool = options.JSON,
) -> None:
    """Make layers again, from locked packages alone, and compare.

    \b
    builder rebuild          the layers that this branch adds to images/layers.lock
    builder rebuild --all    every layer of the file
    builder rebuild v100     an image of the registry

    Exit code 4 names the first layer that differs. --sign writes into images/layers.signed/ that
    this key's owner made them (docs/trust.md).
    """
    from builder.engine.discovery import connect
    from builder.pipeline import rebuild as again

    chosen = settings(registry=registry, engine=engine, key=key)
    if reference is None:
        _rebuild_layers(everything, against, sign, chosen, as_json)
        return
    if everything or sign or against:
        raise InputError("--all, --against and --sign are about layers, not REF", "leave out REF")
    with reporter() as progress:
        reached = partial(connect, chosen, on_event=progress.on_event)
        made = again.rebuild(root(), reference, target, chosen, reached, progress.on_event)
    if as_json:
        out(asdict(made))
    if made.difference:
        raise CheckFailed(
            f"{made.reference} is {made.digest}, built again it is {made.rebuilt}: "
            f"{made.difference}",
            f"check out the commit that it was built from; else do not use it: {made.target}",
        )
    say(f"{made.reference}: built again, the same digest {made.digest}")


def _rebuild_layers(
    everything: bool, against: str | None, sign: bool, chosen: "Settings", as_json: bool
) -> None:
    """Run `builder rebuild` without an image."""
    from builder.engine.discovery import connect
    from builder.image import layers_lock
    from builder.pipeline import layer_lines, signing
    from builder.trust import rebuilders

    signer = signing.signer_of(chosen.trust) if sign else None
    lock = layers_lock.of(root())
    keys = frozenset(lock.layers) if everything else layer_lines.new(root(), against)
    with reporter() as progress:
        reached = partial(connect, chosen, on_event=progress.on_event)
        made = layer_lines.make(root(), keys, chosen, reached, progress.on_event)
    for layer in made:
        say(f"{lock.names[layer.key]}: made again, the same digest {layer.blob.digest}")
    say(f"{len(made)} of {len(lock.layers)} layers made again")
    folder = lock.path.parent / rebuilders.FOLDER
    if signer and (path := rebuilders.sign(folder, made, signer)):
        say(f"wrote {path.relative_to(root())}: commit it")
    if as_json:
        out([{"name": lock.names[layer.key], **asdict(layer)} for layer in made])


def promote(
    reference: str = argument("A reference or tag; with --back, the tag.", default=...),
    tag: str | None = argument("The tag to move, such as production."),
    back: bool = flag("--back", "Move the tag to the image that it led to before."),
    registry: str | None = options.REGISTRY,
) -> None:
    """Move a tag to a proven image, or back.

    \b
    builder promote v100-2.21.0-1a2b3c4d5e6f production
    builder promote --back production
    """
    from builder.pipeline import tags

    chosen = settings(registry=registry)
    if back == (tag is not None):
        raise InputError(
            "promote takes an image and a tag, or --back and a tag",
            "builder promote v100 production; builder promote --back production",
        )
    with reporter() as progress:
        if tag is None:
            moved = tags.rollback(reference, chosen, root(), on_event=progress.on_event)
        else:
            moved = tags.promote(reference, tag, chosen, root(), on_event=progress.on_event)
    before = f" (was {moved.previous or 'new'})" if moved.moved else ""
    say(f"{moved.tag} -> {moved.reference}{before}")


def show_push(pushed: "PushedImage") -> None:
    if pushed.unchanged:
        say(f"{pushed.reference}: already there, nothing sent")
        return
    say(f"{pushed.reference}: {size(pushed.sent)} sent in {duration(pushed.seconds)}")
    say("  tags " + ", ".join(pushed.tags))
    if pushed.signed:
        say(f"  {len(pushed.signed)} attestations signed")


# --- keys -----------------------------------------------------------------------------------------

sign_app = typer.Typer(help="Make keys that sign images, and sign models.", no_args_is_help=True)


@sign_app.command()
def key(
    path: Path = argument("The private key; the public one lies beside it, as .pub.", default=...),
    no_password: bool = flag("--no-password", "Seal it with the empty password."),
) -> None:
    """Make a key pair (ECDSA P-256) that cosign reads, too.

    COSIGN_PASSWORD of the environment becomes the password of the private key. A private key is
    never written into the project.

    builder sign key ~/keys/prover.key
    """
    from builder.core.settings import outside
    from builder.trust import keys

    password = os.environ.get(keys.PASSWORD, "")
    if not password and not no_password:
        raise InputError(
            f"{path}: {keys.PASSWORD} is not set, and whoever reads this file could sign",
            f"set {keys.PASSWORD}, or say --no-password",
        )
    made = keys.create(outside(root(), path, "sign key"), password)
    say(f"wrote {path}, which stays secret")
    say(f"wrote {made.source}, which whoever verifies needs: commit it")


@sign_app.command(name="model")
def sign_model(
    folder: Path = argument("A job's folder, as the job left it.", default=..., metavar="JOB_DIR"),
    key: str | None = option("Sign with this key: a file that COSIGN_PASSWORD opens"),
    registry: str | None = options.REGISTRY,
) -> None:
    """Sign a job's folder as OpenSSF Model Signing does, once it leads to its image.

    Writes the model's bill of materials (CycloneDX), model.cdx.json, and model.sig, which
    `builder verify JOB_DIR --key KEY.pub` and `model_signing verify key` take.
    """
    from builder.pipeline import model, signing
    from builder.trust import model_bill, model_signatures

    chosen = settings(registry=registry, key=key)
    signer = signing.key_of(chosen.trust)
    if signer is None:
        raise InputError("no key is named to sign with", "name one: --key FILE.key")
    with reporter() as progress:
        found = model.sign(folder, chosen, root(), signer, progress.on_event)
    _say_model(found)
    say(f"wrote {folder / model_bill.FILE} and {folder / model_signatures.FILE}")
