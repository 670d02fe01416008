"""The loader that only reads: which file is taken, from where, and what keeps it from loading."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.devicecode.dynamic import Wanted
from builder.reading import layers
from builder.reading.layers import Tree
from builder.reading.loader import Fault, Files, Process
from tests.devicecode.writer import linked
from tests.prove.reading import layer
from tests.reading import machine

LOADER = "/lib64/ld-linux-x86-64.so.2"
PROGRAM = "usr/bin/python3"


def files(
    libraries: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    **variables: str,
) -> Files:
    """The files of an image with a program of Python, and these."""
    content = {PROGRAM: linked(interpreter=LOADER)} | dict(libraries)
    content |= {path: text.encode() for path, text in (texts or {}).items()}
    packed = layer({path: (data, 0o755, 0) for path, data in content.items()}, links)
    read = layers.read(io.BytesIO(packed))
    return Files([read], Tree([read]), variables)


def taken(of: Files, path: str = "/app/m.so") -> str | None:
    """The file that is taken for `libx.so.1`, which a module needs."""
    process = Process(of, f"/{PROGRAM}")
    process.open(path)
    there = process.names.get("libx.so.1")
    return there and there.path


X = linked(soname="libx.so.1")
NEEDS = linked("libx.so.1")
EVERYWHERE = {
    f"{folder}/libx.so.1": X for folder in ("app/own", "env", "conf", "usr/lib/x86_64-linux-gnu")
}
CONF = {"etc/ld.so.conf": "include ld.so.conf.d/*.conf\n", "etc/ld.so.conf.d/a.conf": "/conf # x\n"}


def test_the_search_goes_in_the_order_of_ld_so() -> None:
    """ld.so(8): DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH, ld.so.cache, the default folders."""
    rpath = EVERYWHERE | {"app/m.so": linked("libx.so.1", rpath="/none:$ORIGIN/own")}
    runpath = EVERYWHERE | {"app/m.so": linked("libx.so.1", runpath="${ORIGIN}/own")}
    plain = EVERYWHERE | {"app/m.so": NEEDS}
    assert taken(files(rpath, texts=CONF, LD_LIBRARY_PATH="/env")) == "/app/own/libx.so.1"
    assert taken(files(runpath, texts=CONF, LD_LIBRARY_PATH="/env")) == "/env/libx.so.1"
    assert taken(files(runpath, texts=CONF)) == "/app/own/libx.so.1"
    assert taken(files(plain, texts=CONF)) == "/conf/libx.so.1"
    assert taken(files(plain)) == "/usr/lib/x86_64-linux-gnu/libx.so.1"
    level = {"usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libx.so.1": X}
    assert taken(files(plain | level)) == f"/{next(iter(level))}"


def test_a_runpath_is_not_inherited_and_an_rpath_is() -> None:
    between = {"app/own/liby.so.1": linked("libx.so.1"), "app/own/libx.so.1": X}
    runpath = {"app/m.so": linked("liby.so.1", runpath="$ORIGIN/own")}
    rpath = {"app/m.so": linked("liby.so.1", rpath="$ORIGIN/own")}
    assert taken(files(between | runpath)) is None
    assert taken(files(between | rpath)) == "/app/own/libx.so.1"
    own = {"app/own/liby.so.1": linked("libx.so.1", runpath="/none")}
    assert taken(files(between | rpath | own)) is None, "a RUNPATH shuts the others' RPATH out"


def test_origin_is_where_a_file_was_opened_and_not_where_its_link_leads() -> None:
    wheel = {"site/nvidia/lib/liby.so.1": linked("libx.so.1", runpath="$ORIGIN/../own")}
    start = {"app/m.so": linked("liby.so.1")}
    links = {"usr/lib/liby.so.1": "/site/nvidia/lib/liby.so.1"}
    beside_file = wheel | start | {"site/nvidia/own/libx.so.1": X}
    beside_link = wheel | start | {"usr/own/libx.so.1": X}
    assert taken(files(beside_file, links)) is None
    assert taken(files(beside_link, links)) == "/usr/lib/../own/libx.so.1"


def test_a_file_for_another_machine_is_passed_over() -> None:
    other = linked(soname="libx.so.1", machine=183)
    paths = {"app/m.so": NEEDS, "env/libx.so.1": other, "usr/lib/libx.so.1": X}
    assert taken(files(paths, LD_LIBRARY_PATH="/env")) == "/usr/lib/libx.so.1"


def test_a_name_that_is_loaded_is_not_searched_again() -> None:
    of = files({"app/m.so": NEEDS, "other/z.so": linked(soname="libx.so.1")})
    process = Process(of, f"/{PROGRAM}")
    process.open("/other/z.so")
    process.open("/app/m.so")
    assert process.missing == {} and process.names["libx.so.1"].path == "/other/z.so"


def faults(libraries: Mapping[str, bytes]) -> list[Fault]:
    process = Process(files(libraries), f"/{PROGRAM}")
    return list(process.faults(process.open("/app/m.so")))


def test_a_symbol_that_nothing_defines_and_a_version_that_is_too_new_are_named() -> None:
    wants = linked("libx.so.1", undefined=("f", "g"), wanted=(("libx.so.1", "X_2"),))
    old = linked(soname="libx.so.1", defined=("f",), versions=("X_1",))
    (fault,) = faults({"app/m.so": wants, "usr/lib/libx.so.1": old})
    assert fault == Fault(
        "/app/m.so", ("g",), ((Wanted("libx.so.1", "X_2"), "/usr/lib/libx.so.1"),)
    )
    new = linked(soname="libx.so.1", defined=("f", "g"), versions=("X_1", "X_2"))
    assert faults({"app/m.so": wants, "usr/lib/libx.so.1": new}) == []
    plain = linked(soname="libx.so.1", defined=("f", "g"))
    assert faults({"app/m.so": wants, "usr/lib/libx.so.1": plain}) == [], "glibc warns, and loads"


def test_of_a_missing_or_unreadable_library_nothing_is_concluded() -> None:
    wants = linked("libx.so.1", undefined=("f",))
    assert faults({"app/m.so": wants}) == []
    assert faults({"app/m.so": wants, "usr/lib/libx.so.1": b"\x7fELF"}) == []
    driver = linked("libcuda.so.1", undefined=("cuInit",))
    assert faults({"app/m.so": driver}) == [], "the machine brings it"
    (fault,) = faults({"app/m.so": linked("libcuda.so.1", undefined=("cuInit", "f"))})
    assert fault.symbols == ("f",)


@pytest.fixture(scope="module")
def here() -> Files:
    read = machine.layer()
    return Files([read], Tree([read]), {})


def test_no_module_of_this_environment_is_accused(here: Files) -> None:
    """TensorFlow, NumPy, SciPy, h5py and others: 700 libraries, 100,000 symbols."""
    python = Process(here, machine.PYTHON)
    own = f"{sys.implementation.cache_tag}-x86_64"
    modules = [path for path in here.objects if own in path or "/_pywrap_" in path]
    assert len(modules) > 300 and python.is_followed
    asked, checked = 0, set[str]()
    for path in modules:
        process = python.copy()
        new = [each for each in process.open(path) if each.path not in checked]
        asked += sum(len(each.dynamic.undefined) for each in new if each.dynamic)
        checked |= {each.path for each in new}
        assert process.missing == {}, path
        assert list(process.faults(new)) == [], path
    assert asked > 90_000


def test_it_takes_the_files_that_ld_so_takes(here: Files) -> None:
    """Python imports some modules, and the kernel says what is in its process."""
    program = """
import json, os, sys
import scipy.linalg, h5py
opened = [os.path.realpath(m.__file__) for m in list(sys.modules.values())
          if getattr(m, "__file__", None) and m.__file__.endswith(".so")]
mapped = {os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if ".so" in line}
print(json.dumps([opened, sorted(mapped)]))
"""
    answer = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    modules, mapped = json.loads(answer.stdout)
    process = Process(here, machine.PYTHON)
    for path in modules:
        process.open(path)
    libraries = {path for path in process.loaded if ".so" in Path(path).name}
    assert len(modules) > 50 and libraries == set(mapped)
