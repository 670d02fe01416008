"""What extensions are linked to: the table, the script that computes it, and who refuses by it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from builder.audit.audited import gpu_named
from builder.audit.sources import audited
from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import InputError
from builder.devicecode import dynamic, inventory
from builder.devicecode.dynamic import Dynamic
from builder.facts import DATA, frameworks, known_bad
from builder.reading.images import ImageContent
from tests import ROOT
from tests.devicecode.writer import container, install, library, linked, sass


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("linked_script", str(ROOT / "tools/linked"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    sys.modules[loader.name] = module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_what_the_file_gives(script: ModuleType) -> None:
    links = script.links()
    assert (DATA / "linked.json").read_text() == script.dump(links)
    assert (DATA / "linked.md").read_text() == script.document(links)
    named = [each for extensions in script.EXTENSIONS.values() for each in extensions]
    assert [f"{each.package}=={each.version}" for each in links] == named
    for each in links:
        minors = [frameworks.minor(at.partition("==")[2]) for at in script.RELEASES[each.framework]]
        lacking = [minor for those in each.lacks.values() for minor in those]
        assert sorted((*each.fits, *lacking)) == sorted(minors), each.package
        assert each.fits, f"{each.package} has a release that it was made for"


def test_a_lock_with_an_extension_of_another_release_is_refused(copy: Path) -> None:
    spec, lock = image_yaml.load(copy, "v100-torch"), lockfile.read(copy, "v100-torch")
    (*_, pin) = lock.wheels["torch.lock"]
    extra = replace(pin, name="torchtext", version="0.18.0")
    lock = replace(lock, wheels={**lock.wheels, "extra.lock": (extra,)})
    with pytest.raises(InputError) as refused:
        compatibility.require_lock(spec, lock)
    assert "PyTorch 2.10.0 with torchtext 0.18.0: torchtext does not load" in refused.value.message
    assert refused.value.fix == "take PyTorch 2.3, or leave torchtext out"


@pytest.mark.parametrize(
    ("torch", "torchtext", "is_bad"),
    [
        ("2.4.1+cu121", "0.18.0", True),
        ("2.4.1", "0.18.0+cpu", True),
        ("2.3.0", "0.18.0", False),
        ("2.4.0a0+nv24.6", "0.18.0", False),  # NVIDIA builds both
        ("2.99.0", "0.18.0", False),  # never read
        ("2.4.1", "0.6.0", False),
    ],
)
def test_a_pair_that_was_read_is_known(torch: str, torchtext: str, is_bad: bool) -> None:
    found = known_bad.find({"torch": torch, "torchtext": torchtext}, None)
    assert [each.row.fails for each in found if "torchtext" in each.versions] == [True] * is_bad


def test_audit_says_it_of_a_folder(tmp_path: Path) -> None:
    """Without a GPU, and without the wheels."""
    install(tmp_path, "torch", "2.4.1", {"torch/_C.so": library(container(sass(70)))})
    install(tmp_path, "torchtext", "0.18.0", {"torchtext/_torchtext.so": linked()})
    content = ImageContent(inventory.of_folder(tmp_path))
    (_, found), *_ = audited("site", content, (gpu_named("v100"),)).known_bad
    assert found.pair == "PyTorch 2.4.1 with torchtext 0.18.0"


# --- the script -----------------------------------------------------------------------------------


def wheel(script: ModuleType, name: str, **libraries: bytes) -> Any:
    paths = {f"{name}/{path.replace('__', '/')}.so": data for path, data in libraries.items()}
    read = {f"{script.SITE}/{path}": dynamic.read(data) for path, data in paths.items()}
    record = f"{script.SITE}/{name}-2.4.1.dist-info/RECORD"
    return script.Wheel(read, record, "".join(f"{path},,\n" for path in paths))


def test_the_first_symbol_that_is_missing_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Dynamic(dynamic.X86_64, "/lib64/ld-linux-x86-64.so.2")
    cxx = Dynamic(dynamic.X86_64, soname="libstdc++.so.6")
    there = {"/usr/bin/python3.11": python, f"{script.SYSTEM}/libstdc++.so.6": cxx}
    monkeypatch.setattr(script, "system", lambda: there)
    torch = wheel(
        script,
        "torch",
        lib__libtorch_cpu=linked("libcublas.so.12", soname="libtorch_cpu.so",
                                 undefined=("cublasCreate",), defined=("_ZN2at3sum",)),
        **{"_C.cpython-311-x86_64-linux-gnu": linked("libtorch_cpu.so", runpath="$ORIGIN/lib")},
    )  # fmt: skip
    extensions = {
        "it": ("_ZN2at3sum", "avcodec_open", "_ZN2at4cuda3all", "_ZSt4initv"),
        "another": ("_ZN2at3sum", "_ZN2at3old"),
    }
    for name, undefined in extensions.items():
        made = linked("libtorch_cpu.so", "libavcodec.so.58", "libstdc++.so.6", undefined=undefined)
        both = {"torch==2.4.1": torch, name: wheel(script, "ext", _ops=made)}
        monkeypatch.setattr(script, "wheel", both.get)
        assert script.lacking("torch==2.4.1", name) == ("" if name == "it" else "_ZN2at3old")


def test_a_file_is_read_by_ranges(script: ModuleType) -> None:
    content, asked = bytes(range(256)) * 100, list[str]()

    @contextlib.contextmanager
    def request(_method: str, _url: str, headers: Any, follow: bool) -> Iterator[Any]:
        asked.append(headers["Range"].removeprefix("bytes="))
        first, last = map(int, asked[-1].split("-"))
        pieces = [content[first : last + 1], b""]
        yield SimpleNamespace(
            headers={"Content-Range": f"bytes {first}-{last}/{len(content)}"},
            shutdown=lambda: None,
            read=lambda *_, **__: pieces.pop(0),
        )

    remote = script.Remote(SimpleNamespace(request=request), "https://index/x.whl")
    remote.block = 1000
    file = io.BufferedReader(remote, 100)
    file.seek(-10, io.SEEK_END)
    assert file.read(20) == content[-10:]
    file.seek(5000)
    assert file.read(1500) == content[5000:6500]
    assert asked == ["0-0", "25590-25599", "5000-5999", "6000-6999"]
