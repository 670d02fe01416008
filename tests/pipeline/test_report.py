"""The page of an image: what it says, and that it is one file in which nothing runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli.group import app
from builder.config import lockfile
from builder.core.errors import CheckFailed
from builder.pipeline import records, report
from builder.pipeline.push import LocalImage
from builder.pipeline.report import ImagePage
from builder.prove import receipts, suites, waste
from tests.devicecode.writer import container, library, sass
from tests.emulators.osv import Osv, serving
from tests.pipeline.pushing import proof
from tests.pipeline.test_signing import record
from tests.prove.reading import SITE, archive, layer, plain, read

DIGEST = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"


@pytest.fixture
def osv() -> Iterator[Osv]:
    with serving() as service:
        yield service


@pytest.fixture
def built(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose target cpu was built and proven."""
    monkeypatch.chdir(copy)
    made = replace(record(copy), digest=DIGEST)
    records.write(copy, made)
    receipts.write(
        proof(LocalImage("there", DIGEST, made.image_id), target="cpu", accelerator="CPU"),
        records.folder(copy, "cpu") / receipts.FILE,
    )
    return copy


def write(osv: str, target: str = "cpu") -> Result:
    return CliRunner().invoke(app, ["report", target, "--html", "page.html", "--osv", osv])


def test_the_page_of_a_target_says_what_is_in_it_and_what_proves_it(built: Path, osv: Osv) -> None:
    keras = lockfile.read(built, "cpu").packages["keras"]
    osv.known["PyPI", "keras", keras.version] = ["GHSA-planted"]
    done = write(osv.address)
    assert done.exit_code == 0, done.output
    page = (built / "page.html").read_text()
    assert ">proven<" in page and DIGEST in page
    assert f"<td>keras</td><td>{keras.version}</td><td>Apache-2.0</td>" in page
    assert f"<td>keras {keras.version} (PyPI)</td><td>GHSA-planted</td><td>open</td>" in page
    assert '<td>loader</td><td><span class="state good">passed</span></td>' in page


def test_what_was_not_looked_up_is_never_nothing_and_other_files_have_no_page(
    built: Path, osv: Osv
) -> None:
    records.write(built, replace(record(built), digest=OTHER, image_id=OTHER))
    done = write("http://127.0.0.1:9")
    assert done.exit_code == 0 and "advisories were not looked up" in done.output
    page = (built / "page.html").read_text()
    assert "not looked up</span>" in page and "Nothing is known" not in page
    assert ">not proven<" in page
    (built / "trainer" / "task.py").write_text("print('changed')\n")
    assert "cpu: its files changed since the build" in str(write(osv.address).exception)
    (built / "build" / "cpu" / "image.json").unlink()
    assert "not built yet" in str(write(osv.address).exception)


# The page itself ---------------------------------------------------------------------------------


class Links(HTMLParser):
    """What a page loads or runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe", "object"}:
            self.names.append(tag)
        self.names += [name for name, _ in attrs if name in {"src", "href"} or name[:2] == "on"]


EVIL = '"><script>alert(1)</script>'


def of_target() -> ImagePage:
    """A page of which every word comes from outside."""
    row = [(EVIL, EVIL)]
    return ImagePage(EVIL, EVIL, {EVIL: EVIL}, EVIL, *(row for _ in range(5)), EVIL, row, row)


def of_others() -> ImagePage:
    kernels = library(container(sass(70)))
    path = f"{SITE}/{EVIL.replace('/', '')}.so"
    image = read(layer({path: (kernels, 0o666, 0)}), Env=["HTTPS_PROXY=a"], Cmd=[EVIL], User=EVIL)
    wasted = waste.of_image(image.content, None)
    return report.of_results(EVIL, image, suites.IMAGE.judge(image), wasted)


@pytest.mark.parametrize("page", [of_target(), of_others()], ids=["ours", "others"])
def test_it_is_one_file_and_nothing_in_it_is_run(page: ImagePage) -> None:
    text = report.html(page)
    assert text.startswith("<!doctype html>")
    assert Links(text).names == [] and "<script>" not in text and "alert(1)" in text
    assert re.search(r"url\(|@import", text) is None


def test_the_page_of_an_image_of_others_says_what_prove_says(tmp_path: Path) -> None:
    cache = {
        "/root/.cache/pip/a": (bytes(3_000_000), 0o644, 0),
        **plain(f"{SITE}/a-1.dist-info/RECORD"),
    }
    history, config = ("RUN p",), {"Cmd": ["none"]}
    path = archive(tmp_path / "image.tar", layer(cache), config=config, history=history)
    done = CliRunner().invoke(app, ["prove", str(path), "--html", str(tmp_path / "page.html")])
    assert isinstance(done.exception, CheckFailed), "a page of a refused image is written, too"
    page = (tmp_path / "page.html").read_text()
    assert '<span class="state bad">refused</span>' in page
    assert "<td>entry-point</td><td>the image starts none, which is not there in PATH" in page
    assert "<td>permissions</td><td>the image runs as root" in page
    assert "<td>pip&#39;s cache, 1 files</td><td>/root/.cache/pip/a</td><td>RUN p</td>" in page
    assert "<td>a</td><td>1</td>" in page
