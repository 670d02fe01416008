"""What an index lists: builds by CUDA, and wheels of a variant; and what a lock makes of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from builder.config import image_yaml, listed, lockfile, targets
from builder.config.network import BuildNetwork
from builder.core import files
from builder.core.errors import InputError
from builder.core.events import StepDone
from builder.pipeline import committed, package
from tests.config.test_lock import nothing_new
from tests.emulators.answers import Server, serving
from tests.emulators.index import simple

Wheels = Mapping[tuple[str, str], tuple[str, ...]]

NAMES = (
    "torch-2.14.1+cu126-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.14.1+cu130-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.14.1+cu128-cp311-cp311-manylinux_2_28_aarch64.whl",
    "torch-2.14.1+cu129-cp311-cp311-win_amd64.whl",
    "torch-2.13.0-1-cp311-cp311-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
    "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64-cu132.whl",
    "torch-2.15.0-1-cp311-cp311-manylinux_2_28_x86_64-cu126.whl",
    "torch-2.15.0-cp311-cp311-win_amd64-cu131.whl",
)
JSON_PAGE = json.dumps({"files": [{"filename": name, "url": f"../{name}"} for name in NAMES]})
HTML_PAGE = "\n".join(
    f'<a href="/whl/{name.replace("+", "%2B")}#sha256=0" data-core-metadata="x">{name}</a><br/>'
    for name in NAMES
)


@pytest.mark.parametrize("page", [JSON_PAGE, HTML_PAGE])
def test_a_page_of_either_form_lists_builds_and_variants_for_linux(page: str) -> None:
    answers = {"/whl/torch/": (200, {}, page.encode()), "/other/numpy/": (200, {}, b"numpy")}
    with serving(answers) as server:
        host = BuildNetwork(extra_indexes=(f"{server.address}/other", f"{server.address}/whl/"))
        versions = {"2.14.1+cu126", "2.14.1+cu130", "2.13.0", "2.15.0"}
        assert listed.builds("torch", host) == versions
        variants = "has variants of torch 2.15.0, which are not taken: cu126, cu132"
        assert listed.told("torch", "2.15.0", host) == f"; {server.address}/whl/ {variants}"
        assert listed.told("torch", "2.13.0", host) == ""
        asked = [path for _, path, _ in server.seen]
        assert asked == ["/other/torch/", "/whl/torch/"], "once, in uv's order"


def test_an_index_without_builds_or_without_an_answer_offers_none() -> None:
    with serving({"/simple/torch/": (200, {}, b"torch-2.15.0-py3-none-any.whl")}) as server:
        assert not listed.builds("torch", BuildNetwork(index=f"{server.address}/simple"))
        gone = BuildNetwork(index=f"{server.address}/nowhere")
    assert not listed.builds("torch", gone)
    assert not listed.builds("torch", BuildNetwork()), "PyPI has none, and is not asked"


# --- locks ----------------------------------------------------------------------------------------

PLAIN: Wheels = {
    ("torch", "2.15.0"): ("nvidia-cudnn-cu13==9.26.0.51",),
    ("torch", "2.10.0"): ("nvidia-cudnn-cu12==9.10.2.21",),
    ("nvidia-cudnn-cu13", "9.26.0.51"): (),
    ("nvidia-cudnn-cu12", "9.10.2.21"): (),
    **{(name, "84.2.1"): () for name in ("setuptools", "numpy")},
}
BUILDS: Wheels = {
    ("torch", "2.14.1+cu126"): ("nvidia-cudnn-cu12==9.10.2.21",),
    ("torch", "2.14.1+cu130"): ("nvidia-cudnn-cu13==9.24.0.43",),
    ("torch", "2.13.0+cu126"): ("nvidia-cudnn-cu12==9.10.2.21",),
    ("nvidia-cudnn-cu13", "9.24.0.43"): (),
}


def locked(root: Path, stale: bool = True) -> tuple[lockfile.Lock, list[str]]:
    """The lock that `builder lock v100-torch` makes, and what it says at the end. stale: whether
    the old one fits no more."""
    if stale:
        files.write(root / "examples/torch-digits/requirements.txt", "numpy>=2\n")
    lines: list[str] = []

    def told(event: object) -> None:
        if isinstance(event, StepDone):
            lines.append(event.detail)

    (made,) = committed.lock(root, ["v100-torch"], nothing_new, on_event=told)
    return made, lines


@pytest.fixture
def index(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An index of PyPI's wheels and one of builds by CUDA, below /simple and /whl/cu126; the first
    is the default."""
    with serving(simple("/simple", PLAIN) | simple("/whl/cu126", BUILDS)) as server:
        monkeypatch.setenv("UV_CACHE_DIR", str(copy / "cache"))
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.address}/simple")
        yield server


def test_a_lock_takes_the_build_for_its_gpu_and_keeps_it_without_that_index(
    index: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", f"{index.address}/whl/cu126")
    made, lines = locked(copy)
    assert lines == [f"4 Python packages; torch 2.14.1+cu126 comes from {index.address}/whl/cu126"]
    assert made.release == made.packages["torch"].version == "2.14.1+cu126"
    assert (made.cuda, made.cudnn) == ("12.6", "9.10.2.21")
    for path in (copy / "images/v100-torch").glob("*.lock"):
        assert "http" not in path.read_text(), "an index is a matter of each machine"

    monkeypatch.delenv("UV_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    target = targets.of(copy, "v100-torch")
    assert target.stack.release == "2.14.1+cu126" and not target.checked()[1]
    assert locked(copy, stale=False)[0] == made, "what fits is kept, and no index is asked"
    other = package.on_target(target, package.find(f"{copy}/examples/torch-digits:train"))
    assert other.stack.release == "2.14.1+cu126", "a program in the place of its own has it, too"
    said = {fact.statement: fact for fact in target.facts}
    assert not said["PyTorch 2.14.1+cu126 on V100"].verified
    assert "builder lock --upgrade v100-torch asks" in said["why PyTorch 2.14.1+cu126"].value


def test_an_index_of_the_projects_own_is_asked_for_what_it_says_alone(
    index: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(
        copy / "pyproject.toml",
        f"""[project]
name = "digits"
[[tool.uv.index]]
name = "builds"
url = "{index.address}/whl/cu126"
explicit = true
[tool.uv.sources]
torch = [{{ index = "builds", marker = "sys_platform == 'linux'" }}]
""",
    )
    monkeypatch.chdir(copy)
    made, lines = locked(copy)
    assert made.packages["torch"].version == "2.14.1+cu126"
    assert lines == [f"4 Python packages; torch 2.14.1+cu126 comes from {index.address}/whl/cu126"]
    assert {path for _, path, _ in index.seen if path.startswith("/whl/cu126/")} == {
        "/whl/cu126/torch/",
        "/whl/cu126/torch-2.14.1%2Bcu126-py3-none-any.whl",
    }, "no other package is asked there"


def test_a_build_that_no_index_has_is_refused_with_an_index_that_does(
    index: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(
        copy / "images/v100-torch/image.yaml",
        "accelerator: V100\ntorch: 2.14.1+cu126\nprogram: examples/torch-digits:train\n",
    )
    with pytest.raises(InputError, match=r"torch==2.14.1\+cu126 cannot be installed") as refused:
        locked(copy)
    assert "UV_INDEX" in refused.value.fix and "/whl/cu126" in refused.value.fix
    monkeypatch.setenv("UV_INDEX", f"{index.address}/whl/cu126")
    assert locked(copy)[0].packages["torch"].version == "2.14.1+cu126"


def with_variant(server: Server, version: str, label: str, alone: bool = False) -> None:
    """Add a wheel of a variant that any machine takes to the index; alone: in place of the plain
    one."""
    status, headers, body = server.answers["/simple/torch/"]
    page = json.loads(body)
    plain = next(row for row in page["files"] if f"-{version}-" in row["filename"])
    name = plain["filename"].replace(".whl", f"-{label}.whl")
    server.answers[f"/simple/{name}"] = server.answers[plain["url"]]
    said = json.dumps(
        {
            "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json",
            "default-priorities": {"namespace": ["x86_64"]},
            "variants": {label: {}},
        }
    ).encode()
    listing = f"torch-{version}-variants.json"
    server.answers[f"/simple/{listing}"] = 200, {}, said
    digest = {"sha256": hashlib.sha256(said).hexdigest()}
    page["files"] += [
        {**plain, "filename": name, "url": f"/simple/{name}"},
        {"filename": listing, "url": f"/simple/{listing}", "hashes": digest},
    ]
    if alone:
        page["files"].remove(plain)
    server.answers["/simple/torch/"] = status, headers, json.dumps(page).encode()


@pytest.mark.parametrize("preview", ["", "UV_PREVIEW", "UV_PREVIEW_FEATURES"])
def test_a_variant_beside_the_plain_wheel_is_named_and_not_taken(
    preview: str, index: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(preview or "NOTHING", "1" if preview == "UV_PREVIEW" else "wheel-variants")
    with_variant(index, "2.10.0", "null")
    made, lines = locked(copy)
    page = json.loads(index.answers["/simple/torch/"][2])
    plain = next(row for row in page["files"] if row["filename"].startswith("torch-2.10.0-py3"))
    assert made.packages["torch"].sha256 == plain["hashes"]["sha256"]
    assert lines == [
        f"4 Python packages; {index.address}/simple has variants of torch 2.10.0, which are not "
        "taken: null"
    ]


def test_a_release_with_variants_alone_is_refused_in_one_line(index: Server, copy: Path) -> None:
    with_variant(index, "2.10.0", "null", alone=True)
    before = (copy / image_yaml.IMAGES / "v100-torch/image.lock").read_text()
    with pytest.raises(InputError, match="has only unsupported wheel variants") as refused:
        locked(copy)
    assert "plain wheel" in refused.value.fix
    assert (copy / image_yaml.IMAGES / "v100-torch/image.lock").read_text() == before
