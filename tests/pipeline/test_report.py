"""What is told of an image and of what changed between two: as text, JSON, Markdown and a page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from markdown_it import MarkdownIt

from builder.config import lockfile
from builder.core.settings import Settings
from builder.image import content_store
from builder.image.layer import Layer, assemble
from builder.pipeline import difference, page, records, report
from builder.pipeline.page import Bar, Page, Section
from builder.pipeline.push import LocalImage
from builder.prove import receipts, suites
from builder.registry import Descriptor
from tests.conftest import Run
from tests.devicecode.packing import digest
from tests.devicecode.writer import container, library, ptx, sass
from tests.emulators.osv import Osv, serving
from tests.pipeline.pushing import proof
from tests.pipeline.test_signing import record
from tests.prove.reading import SITE, archive, layer, plain, read
from tests.shown import shown

OTHER = f"sha256:{'b' * 64}"
KERNELS = library(container(sass(70, size=40_000), ptx(80, size=8_000)))
NEWER = library(container(sass(70, size=40_000), sass(90, size=90_000)))
Archive = Callable[..., Path]


@pytest.fixture
def osv() -> Iterator[Osv]:
    with serving() as service:
        yield service


@pytest.fixture
def built(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A project whose target cpu was built and proven; its two layers lie in the machine's
    cache."""
    monkeypatch.chdir(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, made = content_store.of_this_machine(), []
    for name, packed in {
        "keras 3.0": layer(plain(f"{SITE}/keras-3.0.dist-info/RECORD")),
        "app copied to /app": layer({"/app/train.py": (b"pass\n" * 2000, 0o644, 0)}),
    }.items():
        blob = Descriptor.of("application/vnd.oci.image.layer.v1.tar", packed)
        one = Layer(name, blob, digest(packed), len(packed))
        with store.writing() as file:
            file.write(packed)
            made.append((store.keep(file, one), f"builder: {name}"))
    image = assemble(made, {"Cmd": ["python", "-m", "train"], "User": "1000"})
    store.keep_image(image.digest.removeprefix("sha256:"), image)
    noted = replace(record(copy), digest=image.digest, image_id=image.config_digest)
    records.write(copy, noted)
    seen = {"compressed_bytes": 286_000_000, "budget_bytes": 600_000_000}
    proven = proof(LocalImage("there", image.digest, noted.image_id), target="cpu")
    size, *others = (check for check in proven.checks if check.name in ("size", "driver", "loader"))
    checks = (size.model_copy(update={"seen": seen}), *others)
    receipt = proven.model_copy(update={"accelerator": "CPU", "checks": checks})
    receipts.write(receipt, records.folder(copy, "cpu") / receipts.FILE)
    return copy


class Visible(HTMLParser):
    """The text that a page shows, a line for each row; what it loads or runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.active = "", list[str]()
        self.hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden |= tag == "style"
        if tag in {"script", "link", "img", "iframe", "object"}:
            self.active.append(tag)
        self.active += [name for name, _ in attrs if name in {"src", "href"} or name[:2] == "on"]
        self.text += {"td": " | ", "th": " | ", "dd": ": ", "b": " = "}.get(tag, "")

    def handle_endtag(self, tag: str) -> None:
        self.hidden &= tag != "style"

    def handle_data(self, data: str) -> None:
        self.text += "" if self.hidden else data

    def __str__(self) -> str:
        lines = (re.sub(r"\s+", " ", line).strip(" ") for line in self.text.split("\n"))
        return "".join(f"{line}\n" for line in lines if line)


def said_again(text: str, form: str) -> list[str]:
    """The cells of a text's lines that another form lacks, or has before those of earlier lines."""
    at, missing = 0, list[str]()
    for line in filter(None, text.splitlines()):
        cells = re.split(r"  +", line.strip())
        at = max(form.find(cells[0], at), at)
        missing += [cell for cell in cells if cell not in form[at:]]
    return missing


def test_a_target_is_told_in_four_ways(
    built: Path, osv: Osv, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = lockfile.read(built, "cpu").packages["keras"]
    osv.known["PyPI", "keras", keras.version] = ["GHSA-planted"]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("of another step\n")
    ask = ("report", "cpu", "--osv", osv.address)
    changes = {re.escape(keras.version): "LOCKED", r"Debian packages \(\d+": "Debian packages (N"}
    assert shown(builder(*ask, "--html", "page.html"), changes) == snapshot("""\
cpu: proven
  image        training:cpu
  digest       sha256:DIGEST
  accelerator  CPU
  TensorFlow   2.21.0
  pull         1 B
  unpacked     10 kB in 2 layers
  user         1000
  command      python -m train
  made by      machine Docker 28
  proof        proven on CPU, TIME

Checks
  size    passed  A pull transfers 286.0 MB; image.yaml allows 600.0 MB.
  driver  passed  It holds no library of the driver: the machine's own is loaded.
  loader  passed  The framework is imported in the locked version.

Where the bytes lie, by layer
  Unpacked, the lowest layer first.
                      Python  other files  bytes
  keras 3.0                   1 B          1 B    3af1b1a90c0b
  app copied to /app  10 kB                10 kB  2df0b2ae249b

Advisories
  keras LOCKED (PyPI)  GHSA-planted  open

Python packages (1)

Debian packages (N)
| wrote page.html
""")
    summary, _, debian = Path("summary.md").read_text().partition("Debian packages")
    assert "| bash | 5." in debian
    assert shown((0, summary, ""), changes) == snapshot("""\
of another step
## cpu: proven

|  |  |
| --- | --- |
| image | training:cpu |
| digest | sha256:DIGEST |
| accelerator | CPU |
| TensorFlow | 2.21.0 |
| pull | 1 B |
| unpacked | 10 kB in 2 layers |
| user | 1000 |
| command | python -m train |
| made by | machine Docker 28 |
| proof | proven on CPU, TIME |

### Checks

| check | state | saw |
| --- | --- | --- |
| size | passed | A pull transfers 286.0 MB; image.yaml allows 600.0 MB. |
| driver | passed | It holds no library of the driver: the machine's own is loaded.
| .. |
| loader | passed | The framework is imported in the locked version. |

### Where the bytes lie, by layer

Unpacked, the lowest layer first.

|  | Python | other files | bytes |  |
| --- | --- | --- | --- | --- |
| keras 3.0 |  | 1 B | 1 B | 3af1b1a90c0b |
| app copied to /app | 10 kB |  | 10 kB | 2df0b2ae249b |

### Advisories

| package | advisory | accepted |
| --- | --- | --- |
| keras LOCKED (PyPI) | GHSA-planted | open |

<details><summary>Python packages (1)</summary>

| package | version | licence, where it is known |
| --- | --- | --- |
| keras | 3.0 | Apache-2.0 |

</details>

<details><summary>
""")
    text, _, debian = str(Visible(Path("page.html").read_text())).partition("Debian packages")
    assert shown((0, text, ""), changes) == snapshot("""\
cpu
cpu
proven
image: training:cpu
digest: sha256:DIGEST
accelerator: CPU
TensorFlow: 2.21.0
pull: 1 B
unpacked: 10 kB in 2 layers
user: 1000
command: python -m train
made by: machine Docker 28
proof: proven on CPU, TIME
Checks
| check | | saw
| size | passed
| A pull transfers 286.0 MB; image.yaml allows 600.0 MB.
| driver | passed
| It holds no library of the driver: the machine's own is loaded.
| loader | passed
| The framework is imported in the locked version.
Where the bytes lie, by layer
Unpacked, the lowest layer first.
Python 10 kB other files 1 B
keras 3.0 3af1b1a90c0b
= 1 B
app copied to /app 2df0b2ae249b
= 10 kB
Advisories
| package | advisory | accepted
| keras LOCKED (PyPI) | GHSA-planted | open
Python packages (1)
| package | version | licence, where it is known
| keras | 3.0 | Apache-2.0
""")
    told = json.loads(builder(*ask, "--json")[1])
    assert told["checks"][0] == snapshot(
        {
            "check": "size",
            "status": "passed",
            "said": "A pull transfers 286.0 MB; image.yaml allows 600.0 MB.",
        }
    )
    assert told["debian_packages"]["bash"] and told["packages"] == {"keras": "3.0"}
    assert sorted(told) == snapshot(
        [
            "advisories",
            "checks",
            "could_be_saved",
            "debian_packages",
            "device_code",
            "facts",
            "gpus",
            "image",
            "layers",
            "packages",
            "problem",
            "pruned",
            "state",
            "suite",
        ]
    )


def test_what_was_not_looked_up_is_never_nothing_and_other_files_have_no_page(
    built: Path, builder: Run
) -> None:
    made = records.read(built, "cpu")
    assert made
    records.write(built, replace(made, image_id=OTHER, digest=made.digest))
    (built / "build/cpu" / receipts.FILE).unlink()
    code, out, _ = builder("report", "cpu", "--osv", "http://127.0.0.1:9", "--html", "page.html")
    assert (code, "Not looked up: http://127.0.0.1:9" in out) == (0, True)
    text = str(Visible((built / "page.html").read_text()))
    assert "Not looked up" in text and "Nothing is known" not in text
    assert "not proven there is no receipt" in text
    (built / "trainer" / "task.py").write_text("print('changed')\n")
    assert "cpu: its files changed since the build" in builder("report", "cpu")[2]
    (built / "build" / "cpu" / "image.json").unlink()
    assert "not built yet" in builder("report", "cpu")[2]


def test_a_target_whose_layers_are_not_here_is_read_on_the_engine(
    built: Path, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(content_store.of_this_machine().folder / "blobs")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    code, out, err = builder("report", "cpu", "--engine", "machine")
    assert (code, out) == (3, "") and "127.0.0.1:9" in err


# --- what changed ---------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Writes what `docker save` would, of an image with device code, a package and variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rootfs = layer({"/usr/bin/python3": (b"\x7fELF", 0o755, 0)})

    def write(name: str, kernels: bytes, version: str, *env: str, **config: object) -> Path:
        path = f"{SITE}/torch/lib/libtorch_cuda.so"
        files = {path: (kernels, 0o644, 0), **plain(f"{SITE}/torch-{version}.dist-info/RECORD")}
        given = {"Env": [*env, "PATH=/usr/bin"], "Cmd": ["python3", "-V"], **config}
        steps = ("FROM debian", f"RUN pip install torch=={version}")
        return archive(tmp_path / name, rootfs, layer(files), config=given, history=steps)

    return write


def test_what_changed_between_two_images_is_told_in_four_ways(
    saved: Archive, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("old.tar", KERNELS, "2.9.0", User="1000")
    saved("new.tar", NEWER, "2.10.0", "NCCL_DEBUG=INFO", "TOKEN=ghp_" + "a1B2c3D4e5F6" * 3)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    ask = ("report", "old.tar", "new.tar", "--gpu", "h100")
    printed = builder(*ask, "--html", "page.html")
    _, text, after = re.split(r"^.*: changed$|^Bytes$.*?^$", printed[1], flags=re.M | re.S)
    assert shown(printed) == snapshot("""\
old.tar → new.tar: changed
  old       passed
  new       refused
  unpacked  49 kB → 131 kB (+82 kB)
  layers    1 of 2 are the same

Checks
  permissions  passed   It runs as user 1000, and no program gives it another's
.. rights.  It runs as user root, and no program gives it another's rights. The
.. image runs as root: its outputs would belong to root.
  secrets      refused  None of 2 layers holds a secret.
.. The image's environment (TOKEN) holds a token (github-pat).

Python packages
  torch  2.9.0  2.10.0

GPUs
  A100 (8.0)           PTX, any driver  no code
  L4 (8.9)             PTX, any driver  no code
  H100 (9.0)           PTX, any driver  native, any driver
  B200 (10.0)          PTX, any driver  no code
  RTX-PRO-6000 (12.0)  PTX, any driver  no code

Settings
  $NCCL_DEBUG  -     INFO
  $TOKEN       -     *** (a token (github-pat))
  User         1000  -

Bytes
  Unpacked.
          device code  libraries  other files  bytes
  before  48 kB        520 B      5 B          49 kB
  now     130 kB       520 B      5 B          131 kB

Device code
  9.0 (H100, H200)  -     90 kB  +90 kB
  8.0 (A100)        8 kB  -      -8 kB

Layers
  RUN pip install torch==2.10.0 (ca1431f4e5db)  -      131 kB  +131 kB
  RUN pip install torch==2.9.0 (f914857e1b5b)   49 kB  -       -49 kB

Libraries (1)
|   = read old.tar  N s
|   = read new.tar  N s
| wrote page.html
""")
    summary = Path("summary.md").read_text()
    assert "| \\$NCCL\\_DEBUG | - | INFO |" in summary
    for form in (summary.replace("\\", ""), str(Visible(Path("page.html").read_text()))):
        assert said_again(text + after, form) == []  # the bytes are bars
    told = json.loads(builder(*ask, "--json")[1])
    assert [each["status"] for each in told.pop("checks")["secrets"]] == ["passed", "refused"]
    assert told == snapshot(
        {
            "old": "old.tar",
            "new": "new.tar",
            "same": False,
            "packages": {"torch": ["2.9.0", "2.10.0"]},
            "debian_packages": {},
            "device_code": {"9.0 (H100, H200)": [None, 90064], "8.0 (A100)": [8064, None]},
            "gpus": {
                "A100 (8.0)": ["PTX, any driver", "no code"],
                "L4 (8.9)": ["PTX, any driver", "no code"],
                "H100 (9.0)": ["PTX, any driver", "native, any driver"],
                "B200 (10.0)": ["PTX, any driver", "no code"],
                "RTX-PRO-6000 (12.0)": ["PTX, any driver", "no code"],
            },
            "bytes": {"device code": [48128, 130128]},
            "layers": {
                "RUN pip install torch==2.10.0 (ca1431f4e5db)": [None, 130649],
                "RUN pip install torch==2.9.0 (f914857e1b5b)": [48649, None],
            },
            "libraries": {
                "/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so": [48648, 130648]
            },
            "settings": {
                "$NCCL_DEBUG": [None, "INFO"],
                "$TOKEN": [None, "*** (a token (github-pat))"],
                "User": ["1000", None],
            },
        }
    )


def test_an_image_is_the_same_as_itself(saved: Archive, builder: Run) -> None:
    saved("one.tar", KERNELS, "2.9.0")
    shutil.copy("one.tar", "two.tar")
    assert shown(builder("report", "one.tar", "two.tar")) == snapshot("""\
one.tar → two.tar: same
  old       passed
  new       passed
  unpacked  49 kB (+0 B)
  layers    2 of 2 are the same
|   = read one.tar  N s
|   = read two.tar  N s
""")


def test_a_target_is_compared_with_an_image_of_others_by_the_checks_of_any_image(
    built: Path, saved: Archive, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = saved("theirs.tar", KERNELS, "2.9.0")
    monkeypatch.chdir(built)
    code, out, _ = builder("report", str(theirs), "cpu", "--json")
    told = json.loads(out)
    assert code == 0 and told["packages"] == {"keras": [None, "3.0"], "torch": ["2.9.0", None]}
    assert "size" not in told["checks"], "no other image was asked that"
    before, now = told["checks"]["permissions"]
    assert before["said"].startswith("It runs as user root, and no program gives it another's")
    assert now["status"] == "passed"


def test_two_receipts_of_one_suite_are_compared_as_they_are(built: Path) -> None:
    one = report.of("cpu", report.ReportRequest(built, Settings()), date.today())
    worse = one.checks[0].model_copy(
        update={"passed": False, "problems": (receipts.Defect("too large"),)}
    )
    other = replace(one, name="new", checks=(worse, *one.checks[1:]))
    assert list(difference.of(one, other).checks) == ["size"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("gone.tar",), "gone.tar: no such file or folder"),
        (("gone.tar", "one.tar"), "gone.tar: no such file or folder"),
        (("one.tar", "gone.tar"), "gone.tar: no such file or folder"),
        (("one.tar", "127.0.0.1:9/a/b:c"), "127.0.0.1:9"),
    ],
)
def test_what_is_not_there_is_named_and_nothing_is_written(
    names: tuple[str, ...], said: str, saved: Archive, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("one.tar", KERNELS, "2.9.0")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    code, out, err = builder("report", *names, "--html", "page.html", "--engine", "machine")
    assert code in (2, 3) and said in err and out == ""
    assert not Path("summary.md").exists() and not Path("page.html").exists()


# --- what strangers wrote -------------------------------------------------------------------------

EVIL = '"><script>alert(1)</script>|`![x](http://e.vil/a) https://e.vil\n::error::a\n# b \x1b[31m'


def of_others() -> Page:
    """The page of an image of which every word is hostile."""
    path = f"{SITE}/{EVIL.replace('/', '')}.so"
    image = read(layer({path: (KERNELS, 0o666, 0)}), Env=["HTTPS_PROXY=a"], Cmd=[EVIL], User=EVIL)
    foreign = receipts.CheckResult(
        name=EVIL, version=1, passed=True, seconds=0, seen={"note": EVIL, "steps": EVIL}
    )
    checks = [*suites.IMAGE.judge(image), foreign]
    return report.page(report.of_image(EVIL, image, checks))


def made_up() -> Page:
    """A page of which every field is hostile."""
    bars = [Bar(EVIL, {EVIL: 1, "b": 2}, EVIL)]
    sections = [Section(EVIL, EVIL, (EVIL, "state"), [(EVIL, EVIL)]), Section(EVIL, bars=bars)]
    folded = Section(EVIL, EVIL, ("", EVIL), [(EVIL, EVIL)], folded=True, matrix=True)
    return Page(EVIL, EVIL, {EVIL: EVIL}, EVIL, [*sections, folded])


def changed() -> Page:
    """What changed, of which every word is hostile."""
    old = report.of_image(EVIL, read(layer(plain(f"/{EVIL}")), Env=[f"{EVIL}=1"]), ())
    new = report.of_image(EVIL, read(layer(plain("/a")), Cmd=[EVIL], User=EVIL), ())
    return difference.page(difference.of(old, new))


@pytest.mark.parametrize(
    "shown_page", [of_others(), made_up(), changed()], ids=["image", "page", "two"]
)
def test_what_strangers_wrote_is_text_and_nothing_more(shown_page: Page) -> None:
    text = page.html(shown_page)
    assert text.startswith("<!doctype html>")
    assert Visible(text).active == [] and "<script>" not in text and "alert(1)" in text
    assert re.search(r"url\(|@import|\x1b", text) is None
    written = page.markdown(shown_page)
    assert "alert(1)" in written and not re.search(r"\x1b|^::|^# b", written, re.MULTILINE)
    parsed = MarkdownIt("gfm-like", {"linkify": False}).parse(written)
    inner = [each for token in parsed for each in (token, *(token.children or ()))]
    kinds = {token.type for token in inner}
    assert not kinds & {"image", "link_open", "html_inline", "code_inline", "fence"}
    html = "".join(token.content for token in inner if token.type == "html_block")
    assert set(re.findall(r"<[^>]*>", html)) <= {
        "<details>",
        "<summary>",
        "</summary>",
        "</details>",
    }


def test_a_password_of_an_address_is_on_no_page(saved: Archive, builder: Run) -> None:
    saved("one.tar", KERNELS, "2.9.0", Cmd=["https://me:pass1234@h.example.com/simple"])
    saved("two.tar", KERNELS, "2.9.0")
    _, out, _ = builder("report", "one.tar", "two.tar", "--html", "p.html", "--summary", "s.md")
    for text in (out, Path("p.html").read_text(), Path("s.md").read_text()):
        assert "h.example.com" in text and "pass1234" not in text


def test_a_long_table_is_cut_with_its_number_and_an_empty_column_vanishes() -> None:
    rows = [(str(n), "", "x") for n in range(page.MOST + 2)]
    head, kept = Section("many", "", ("a", "b", "c"), rows).table
    assert list(head) == ["a", "c"] and kept[0] == ["0", "x"]
    assert len(kept) == page.MOST + 1 and kept[-1] == ["and 2 more", ""]


def test_the_page_of_an_image_of_others_says_what_prove_says(tmp_path: Path, builder: Run) -> None:
    cache = {
        "/home/a/.cache/pip/a": (bytes(3_000_000), 0o644, 0),
        **plain(f"{SITE}/a-1.dist-info/RECORD"),
    }
    history, config = ("RUN p",), {"Cmd": ["none"]}
    path = archive(tmp_path / "image.tar", layer(cache), config=config, history=history)
    code, _, _ = builder("prove", str(path), "--html", str(tmp_path / "page.html"))
    assert code == 4, "a page of a refused image is written, too"
    text = str(Visible((tmp_path / "page.html").read_text()))
    assert "refused" in text.splitlines()[2]
    assert "entry-point | refused\n| The image starts none, which is not there in PATH" in text
    assert "permissions | the image runs as root" in text
    assert "3.0 MB | pip's cache, 1 files | /home/a/.cache/pip/a | RUN p" in text
    assert "Python packages (1)" in text and "a | 1" in text
