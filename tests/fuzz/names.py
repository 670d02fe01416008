"""Names in an image, of pieces that command a terminal, a CI service or a page: no line of what
`builder prove` and `builder audit` print, annotate or write as a page is theirs."""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import re
from collections.abc import Iterable
from typing import Any

from builder.audit import report
from builder.audit.audited import Audited, gpu_named
from builder.cli.common import results
from builder.devicecode.verdict import Audit
from builder.pipeline import difference
from builder.pipeline import page as paging
from builder.pipeline import report as reports
from builder.prove import any_image, suites, waste
from builder.prove.image import Image
from builder.reading import layers
from builder.reading.images import ImageContent
from tests.devicecode.writer import container, library, sass
from tests.prove.hostile import COMMAND, COMMANDS, KEY, MOVES, SITE, WORDS, files

FORGED = re.compile(r"^(\s*::(error|warning)::|\S+ +passed +)forged", re.MULTILINE)

_PIECES = (
    *WORDS.values(),
    *("\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2029", "\ufeff", "\x9b31m", "\x1b]8;;x\x07"),
    *(
        "::",
        "##[",
        "::error::forged",
        "a passed forged",
        "%0A",
        "]]>",
        "-->",
        "{{ 7 * 7 }}",
    ),
    *(
        ".",
        "..",
        " ",
        "\\",
        "'",
        '"',
        "`",
        "$(x)",
        "\N{PILE OF POO}",
        "e\u0301",
        "lib",
        ".so",
        "=",
        ":",
    ),
)


def _word(chance: random.Random) -> str:
    word = "".join(chance.choice(_PIECES) for _ in range(chance.randint(1, 6)))
    return word.replace("\0", "").replace("/", "|")[:200]


def names(number: int) -> None:
    """Names of files, variables, users and commands of one image."""
    chance = random.Random(number)

    def word() -> str:
        return _word(chance)

    script = f"#!{word()}\nexport {word()}={word()}\nexec {word()}"
    hook = f"import {word()}\nimport {word()}"
    packed = files(
        (f"opt/{word()}", b"x", 0o4755),
        (f"srv/{word()}.pem", KEY, 0o600),
        (f"{SITE}/{word()}.so", library(container(sass(chance.choice((70, 90))))), 0o644),
        (
            f"{SITE}/{word()}.pth",
            hook.encode(),
            0o644,
        ),
        (
            "app/run.sh",
            script.encode(),
            0o755,
        ),
        links={f"usr/bin/{word()}": word()},
    )
    command = chance.choice([[word(), word()], ["/app/run.sh"], COMMAND["Entrypoint"]])
    config: dict[str, Any] = {
        "Entrypoint": command,
        "Env": [f"PATH={word()}:/usr/bin", f"{word()}={word()}", f"CUDA_VISIBLE_DEVICES={word()}"],
        "User": chance.choice(["", word()]),
        "WorkingDir": word(),
        "StopSignal": chance.choice(["SIGTERM", word()]),
        "Labels": {word(): word()},
    }
    read = (layers.read(io.BytesIO(gzip.compress(packed))),)
    steps = {"config": config, "history": [{"created_by": word()}]}
    content = ImageContent(layers.merge(read), read, steps)
    gpu = gpu_named("V100")
    image = Image(content, gpu)
    checks = suites.IMAGE.judge(image)
    wasted = waste.of_image(content, gpu.capability)
    secrets = tuple(map(str, content.secrets))
    audited = Audited(word(), Audit(content.libraries), (gpu,), secrets=secrets)
    proven = _shown(any_image.lines(checks), waste.lines(wasted), any_image.github_lines(checks))
    table = _shown(report.table([audited]), report.github_lines([audited]))  # rows begin with names
    told = reports.of_image(word(), image, checks)
    nothing = reports.of_image(word(), Image(ImageContent(())), ())
    pages = (reports.page(told), difference.page(difference.of(nothing, told)))
    page = "".join(map(paging.html, pages))
    written = "".join(map(paging.markdown, pages))
    lines = _shown(*map(paging.lines, pages))
    anywhere = (COMMANDS, MOVES)
    every = ((proven, (*anywhere, FORGED)), *((x, anywhere) for x in (table, page, written, lines)))
    for text, rules in every:
        for rule in rules:
            found = rule.search(text)
            assert not found, repr(text[max(0, found.start() - 80) :][:200])
    assert "<script>alert" not in page and "<img" not in page


def _shown(*lines: Iterable[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        for each in lines:
            results(False, None, each)
    return shown.getvalue()
