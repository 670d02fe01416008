"""The page of an image: what it says, that it is one file, and that nothing in it is believed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import InputError
from builder.lock import model
from builder.pipeline import imagehtml, records, signing
from builder.pipeline.imagepage import ImagePage, PageAdvisory, PageLayer
from builder.pipeline.tags import move
from builder.pipeline.verify import ACCELERATOR
from builder.prove import receipts
from builder.prove.receipts import CheckResult
from builder.registry import Descriptor, Manifest, Registry, manifests
from tests.emulators.osv import Osv, serving
from tests.pipeline.pushing import REPOSITORY, Image, proof
from tests.pipeline.test_signing import record
from tests.registry.server import RegistryServer
from tests.trust.signing import at, pair, receipt

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
        proof(Image("there", DIGEST, made.image_id), target="cpu", accelerator="CPU"),
        records.folder(copy, "cpu") / receipts.FILE,
    )
    return copy


def report(osv: str, target: str = "cpu") -> Result:
    return CliRunner().invoke(app, ["report", target, "--html", "page.html", "--osv", osv])


def test_the_page_of_a_target_says_what_is_in_it_and_what_proves_it(built: Path, osv: Osv) -> None:
    keras = model.read(built, "cpu").packages["keras"]
    osv.known["PyPI", "keras", keras.version] = ["GHSA-planted"]
    done = report(osv.address)
    assert done.exit_code == 0, done.output
    page = (built / "page.html").read_text()
    assert ">proven<" in page and DIGEST in page
    assert f"<td>keras</td><td>{keras.version}</td><td>Apache-2.0</td>" in page
    assert f"<td>keras {keras.version} (PyPI)</td><td>GHSA-planted</td><td>open</td>" in page
    assert "<td>loader</td><td>passed</td>" in page
    assert "a month in a registry" in page


def test_what_was_not_looked_up_is_never_nothing(built: Path) -> None:
    done = report("http://127.0.0.1:9")
    assert done.exit_code == 0 and "advisories were not looked up" in done.output
    page = (built / "page.html").read_text()
    assert "not looked up</span>" in page and "Nothing is known" not in page


def test_a_receipt_of_another_image_proves_nothing(built: Path, osv: Osv) -> None:
    records.write(built, replace(record(built), digest=OTHER, image_id=OTHER))
    report(osv.address)
    assert ">not proven<" in (built / "page.html").read_text()


def test_an_image_of_other_files_has_no_page(built: Path, osv: Osv) -> None:
    (built / "trainer" / "task.py").write_text("print('changed')\n")
    done = report(osv.address)
    assert isinstance(done.exception, InputError)
    assert "cpu: its files changed since the build" in done.exception.message
    (built / "build" / "cpu" / "image.json").unlink()
    done = report(osv.address)
    assert isinstance(done.exception, InputError) and "not built yet" in done.exception.message


# An image in a registry --------------------------------------------------------------------------


def layered(there: Registry, *packages: str) -> Manifest:
    """An image whose history names packages as a base's does; the tag v100 leads to it."""
    data = [package.encode() for package in packages]
    config = manifests.configuration(
        {"architecture": "amd64", "os": "linux"},
        {"Labels": {ACCELERATOR: "V100"}},
        [
            manifests.Added(manifests.digest_of(one), f"builder: {package}")
            for one, package in zip(data, packages, strict=True)
        ],
        0,
    )
    for blob in (*data, config):
        there.put_blob(REPOSITORY, blob)
    made = manifests.image(
        Descriptor.of(manifests.OCI_CONFIG, config),
        [Descriptor.of(manifests.OCI_LAYER_ZSTD, one) for one in data],
    )
    there.put_manifest(REPOSITORY, made.digest, made)
    move(there, at(there.host).tagged("v100"), made)
    return made


@pytest.mark.network
def test_the_page_of_an_image_in_a_registry(
    server: RegistryServer, osv: Osv, root: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    ours = pair(project.parent, "ours")
    settings = f'registry = "{server.host}/{REPOSITORY}"\n[trust]\nprove = ["{ours.public}"]\n'
    (project / "builder.toml").write_text(settings)
    with Registry(server.host) as there:
        old = layered(there, "keras 3.0.0", "2 small wheels: rich 15.0.0, gast 0.7.0")
        new = layered(there, "keras 3.1.0", "2 small wheels: rich 15.0.0, gast 0.7.0")
        proven = receipt(new)
        bare = report(osv.address, "v100")
        assert bare.exit_code == 0, bare.output
        page = (project / "page.html").read_text()
        assert ">not proven<" in page and "no signed bill of materials" in page

        known = signing.about(root, record(root), "0.1.0")
        said = signing.said(there, at(server.host), new, proven, known)
        signing.sign(there, at(server.host), said, ours.signer, proven.made_at)

    assert report(osv.address, "v100").exit_code == 0
    page = (project / "page.html").read_text()
    assert ">proven<" in page and old.digest in page
    assert "<td>keras</td><td>3.0.0</td><td>3.1.0</td>" in page
    assert "<td>rich</td><td>15.0.0</td>" in page
    assert f"<td>https://cyclonedx.org/bom</td><td>{ours.public}</td>" in page
    assert "not looked up" not in page
    assert ("PyPI", "keras") in {(one[0], one[1]) for one in osv.asked}
    assert ("Debian:12", "expat") in {(one[0], one[1]) for one in osv.asked}


# The page itself ---------------------------------------------------------------------------------


class Links(HTMLParser):
    """What a page loads or runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe", "object"}:
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name in {"src", "href"} or name[:2] == "on"]


def test_it_is_one_file_and_nothing_in_it_is_run() -> None:
    evil = '"><script>alert(1)</script>'
    seen = CheckResult(name=evil, version=1, passed=True, seconds=1, seen={evil: evil})
    page = ImagePage(
        title=evil,
        facts={evil: evil},
        layers=(PageLayer(evil, 5, (f"{evil} 1",)), PageLayer("b 1", 2, ("b 1",))),
        proof=proof(Image("there", DIGEST, DIGEST), checks=(seen,), device=evil),
        problem=evil,
        said=((evil, evil),),
        advisories=(PageAdvisory(evil, evil, evil),),
        not_asked="",
        changed={evil: (evil, evil)},
    )
    text = imagehtml.html(page, {})
    assert Links(text).found == [] and "<script>" not in text
    assert re.search(r"url\(|@import", text) is None


def test_packages_share_the_place_of_their_layer() -> None:
    packages = {"rich 15.0.0": 30, "gast 0.7.0": 10}
    small = PageLayer("2 small wheels", 20, tuple(packages), packages)
    page = ImagePage("x", {}, (PageLayer("keras 3.1", 60, ("keras 3.1",)), small), None, "", (),
                     (), "", None)  # fmt: skip
    text = imagehtml.html(page, {"an hour": "1 $"})
    assert "<dt>an hour</dt><dd>1 $</dd>" in text
    tiles = re.findall(r'width:([\d.]+)%;height:([\d.]+)%" title="([^:]*)', text)
    shares = {title: float(width) * float(height) / 100 for width, height, title in tiles}
    assert shares == {
        "keras 3.1": pytest.approx(75),
        "rich 15.0.0, in 2 small wheels": pytest.approx(18.75),
        "gast 0.7.0, in 2 small wheels": pytest.approx(6.25),
    }


def test_the_map_gives_each_layer_its_share() -> None:
    sizes = [50, 30, 10, 5, 3, 2]
    found = list(imagehtml.rectangles(sizes, 0, 0, 100, 100))
    assert [round(w * h) for _, _, w, h in found] == [size * 100 for size in sizes]
    for number, (x, y, w, h) in enumerate(found):
        assert x >= 0 and y >= 0 and x + w <= 100.001 and y + h <= 100.001
        for other_x, other_y, other_w, other_h in found[:number]:
            apart_x = x + 0.001 > other_x + other_w or other_x + 0.001 > x + w
            assert apart_x or y + 0.001 > other_y + other_h or other_y + 0.001 > y + h
