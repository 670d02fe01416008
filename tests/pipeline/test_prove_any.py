"""The receipt of an image that anybody made lies beside it, and counts where it is asked for."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from builder import registry
from builder.audit.audited import gpu_named
from builder.core.errors import CheckFailed
from builder.core.settings import Settings
from builder.pipeline.prove_any import Judgement
from builder.pipeline.verify import RECEIPT_TYPE
from builder.prove import suites
from builder.prove.image import Image, RanOnGpu
from builder.prove.judge import Run as Ran
from builder.prove.receipts import CheckResult
from builder.reading.images import ImageContent
from builder.registry import Manifest
from tests.conftest import Run
from tests.pipeline.pushing import results
from tests.shown import shown
from tests.trust.signing import Pair, Repository

DIGEST = b"sha256:" + b"1" * 64
UNSEEN = CheckResult(
    name="loader", version=5, passed=True, seconds=0, seen={"not_followed": "musl"}
)


def test_what_was_not_followed_is_not_signed() -> None:
    manifest = Manifest(b'{"layers": [], "config": {"digest": "%b", "size": 1}}' % DIGEST, "")
    image = registry.parse("127.0.0.1:1/a/b:c").at(manifest.digest)
    read = Image(ImageContent(()))
    with pytest.raises(CheckFailed, match="the check loader could not follow musl"):
        Judgement(str(image), read, None, (UNSEEN,), (), (), manifest).push_receipt(Settings())


@pytest.mark.network
def test_a_receipt_lies_beside_an_image_of_others_and_is_asked_for_by_name(
    repository: Repository,
    ours: Pair,
    other: Pair,
    builder: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never stands for the proof that an image of ours, or a job, asks for."""
    monkeypatch.setenv("BUILDER_ENGINE", "machine")
    made, name = repository.image("theirs", "theirs"), f"{repository.reference}:theirs"
    pinned = str(repository.reference.at(made.digest))
    names = {
        repository.path: "REPOSITORY",
        r"/\S+/(ours|other)\.": r"\1.",
        r"(?m)^(\|   [a-z-]+) \d+: ": r"\1 N: ",
    }
    ask = lambda *words: shown(builder(*words), names)  # noqa: E731
    assert ask("verify", pinned, "--suite", "image") == snapshot("""\
|   x verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: no
| .. receipt refers to it
| error: 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: no
| .. receipt refers to it
| fix:   do not use it; prove and push it again: builder smoke TARGET, builder push
| .. TARGET
exit code 4
""")
    assert ask("prove", name, "--push-receipt", "--key", str(ours.path)) == snapshot("""\
device-code   not there    no GPU is named (--gpu)
combinations  not there    no Python packages, and no library of CUDA's
environment   passed       0 variables
machine       passed
driver        passed
permissions   passed       USER root
    finding: the image runs as root: its outputs would belong to root
    instead: end the Dockerfile with USER 1000:1000
shadows       passed
loader        not there    no compiled module of Python
installed     not there    no Python packages
certificates  not there    no /etc/ssl/certs/ca-certificates.crt,
.. /etc/pki/tls/certs/ca-bundle.crt, /etc/ssl/cert.pem: its program may bring its
.. own
entry-point   not there    the image names no command: whoever starts it has to
secrets       passed       1 layers
pth           passed       no .pth file runs code
start         not there    only an image in the engine is started (docker load,
.. docker pull)
compile       not there    only an image in the engine is started (docker load,
.. docker pull)
|   = find 127.0.0.1:PORT/REPOSITORY:theirs  N s
|   = read 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST: its receipt sha256:DIGEST is attached and
| .. signed
""")
    by = lambda pair: ("--suite", "image", "--key", str(pair.public))  # noqa: E731
    assert ask("verify", pinned, *by(ours)) == snapshot("""\
|   = verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST: proven on CPU, TIME
|   signed by ours.pub
|   device-code N: not there
|   combinations N: not there
|   environment N: passed
|   machine N: passed
|   driver N: passed
|   permissions N: passed
|   shadows N: passed
|   loader N: not there
|   installed N: not there
|   certificates N: not there
|   entry-point N: not there
|   secrets N: passed
|   pth N: passed
|   start N: not there
|   compile N: not there
""")
    assert ask("verify", pinned, *by(other)) == snapshot("""\
|   x verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: it is
| .. signed by none of the keys that are trusted
| error: 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: it
| .. is signed by none of the keys that are trusted
| fix:   do not use it; prove and push it again: builder smoke TARGET, builder push
| .. TARGET --key KEY
exit code 4
""")
    assert ask("verify", pinned) == snapshot("""\
|   x verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: the
| .. receipt is of the suite image, the image needs trainer
| error: 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) is not proven: the
| .. receipt is of the suite image, the image needs trainer
| fix:   do not use it; prove and push it again: builder smoke TARGET, builder push
| .. TARGET
exit code 4
""")
    listed = repository.client.referrers(repository.path, made.digest, RECEIPT_TYPE)
    assert len(listed) == 1


@pytest.mark.network
def test_who_has_the_gpu_signs_what_it_did_and_whoever_wants_asks_for_it(
    repository: Repository, ours: Pair, other: Pair, builder: Run
) -> None:
    made, gpu = repository.image("theirs", "theirs"), gpu_named("v100")
    pinned, image = repository.name(made), Image(ImageContent(()), gpu)
    checks = results(suites.IMAGE.required("V100"))
    Judgement(pinned, image, gpu, checks, (), (), made).push_receipt(repository.settings(key=ours))
    names = {
        repository.path: "REPOSITORY",
        r"/\S+/(ours|other)\.": r"\1.",
        r"(?m)^(\|   [a-z-]+) \d+: passed$": r"\1",
    }
    ask = lambda *words: shown(builder("verify", pinned, "--suite", "image", *words), names)  # noqa: E731
    assert ask("--key", str(ours.public), "--require", "gpu") == snapshot("""\
|   x verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) was seen on no V100:
| .. its receipt is of no run on a GPU (builder prove --on-gpu)
| error: 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST (sha256:DIGEST) was seen on no
| .. V100: its receipt is of no run on a GPU (builder prove --on-gpu)
| fix:   on a machine that has one: docker pull
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST; builder prove
| .. 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST --gpu V100 --on-gpu --push-receipt
| .. --key KEY
exit code 4
""")
    ran = RanOnGpu(Ran(0, 9.0), "Tesla V100-SXM2-16GB", "550.54.15")
    note = {"note": f"{ran.device}, driver {ran.driver}: 5.00 GiB, 5.10 said; 20 steps"}
    on_gpu = CheckResult(name="gpu", version=1, passed=True, seconds=40, seen=note)
    image = Image(ImageContent(()), gpu, ran=ran)
    judged = Judgement(pinned, image, gpu, (*checks, on_gpu), (), (), made)
    judged.push_receipt(repository.settings(key=other))
    assert ask("--key", str(other.public), "--require", "gpu") == snapshot("""\
|   = verify 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST  N s
| 127.0.0.1:PORT/REPOSITORY@sha256:DIGEST: proven on Tesla V100-SXM2-16GB, TIME
|   signed by other.pub
|   device-code
|   combinations
|   environment
|   machine
|   driver
|   permissions
|   shadows
|   loader
|   installed
|   certificates
|   entry-point
|   secrets
|   pth
|   start
|   compile
|   gpu
|   on its GPU: Tesla V100-SXM2-16GB, driver 550.54.15: 5.00 GiB, 5.10 said; 20
| .. steps, TIME; signed by other.pub
""")
    assert builder("verify", ".", "--require", "cpu")[0] == 2
