"""Pruning: what goes, what stays to the byte, and what happens when something goes wrong."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.devicecode import inventory
from builder.devicecode.pruning import prune as pruning
from builder.devicecode.pruning.__main__ import main
from builder.devicecode.pruning.errors import CheckFailed, Malformed
from builder.devicecode.pruning.fatbin import containers
from builder.devicecode.pruning.rule import compute_capability
from builder.devicecode.verdict import Audit, Support

from .writer import Part, container, entry, install, library, lto, ptx, sass

EVERYTHING = (*map(sass, (60, 70, 75, 80, 86, 89, 90)), sass(90, "a"), ptx(70), ptx(90))


def carried(path: Path) -> list[list[str]]:
    return [[str(e.target) for e in c.entries] for c in containers(path.read_bytes())]


def pruned(tmp_path: Path, data: bytes, keep: str) -> list[list[str]]:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    pruning.prune_file(path, compute_capability(keep))
    return carried(path)


@pytest.mark.parametrize(
    ("device", "stays"),
    [
        ("7.0", ["sm_70"]),
        ("7.5", ["sm_70", "sm_75"]),  # the lower minors of the major stay: cuBLAS needs them
        ("8.0", ["sm_80"]),
        ("8.9", ["sm_80", "sm_86", "sm_89"]),
        ("9.0", ["sm_90", "sm_90a"]),
        ("10.0", ["compute_70", "compute_90"]),  # no cubin: PTX is all there is
    ],
)
def test_the_whole_major_up_to_the_device_stays(
    tmp_path: Path, device: str, stays: list[str]
) -> None:
    assert pruned(tmp_path, library(container(*EVERYTHING)), device) == [stays]


def test_what_each_container_and_section_keeps(tmp_path: Path) -> None:
    odd = (lto(90), entry(0x10, 100), entry(0x200, 90))
    data = library(
        container(sass(70), *odd, sass(80)),
        container(sass(90, "a")),  # for other devices: it ends empty
        more=(Part("__nv_relfatbin", container(sass(70), sass(80))),),
    )
    assert pruned(tmp_path, data, "7.0") == [
        ["sm_70", "lto_90", "mercury_100", "kind-0x200_90"],
        [],
        ["sm_70"],
    ]
    others = library(container(sass(80), sass(90)))
    pruned(tmp_path, others, "7.0")
    assert (tmp_path / "lib.so").read_bytes() == others, "the audit then says what it carries"


@pytest.mark.parametrize("section", [".ldata", ".data", ".cask_resource", ".rodata.kernels"])
def test_tables_of_a_librarys_own_are_not_touched(tmp_path: Path, section: str) -> None:
    own = Part(section, container(sass(70), sass(80)))
    data = library(container(sass(70), sass(80)), more=(own,))
    assert pruned(tmp_path, data, "7.0") == [["sm_70"], ["sm_70", "sm_80"]]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(EVERYTHING), max_size=6), min_size=1, max_size=6),
    st.sampled_from(["7.0", "7.5", "8.0", "8.9", "9.0"]),
)
def test_bytes(made: list[list[bytes]], device: str) -> None:
    """Same length; nothing outside the containers moves; what stays is identical; twice is once."""
    data = library(*(container(*c) for c in made), more=(Part(".ldata", container(sass(1))),))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lib.so")
        path.write_bytes(data)
        path.chmod(0o750)
        capability = compute_capability(device)
        first = pruning.prune_file(path, capability)
        after = path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o750
        again = pruning.prune_file(path, capability)
        assert not again.changed
        assert path.read_bytes() == after
        assert list(Path(folder).iterdir()) == [path]
    assert len(after) == len(data)
    assert first.changed == (after != data)
    first_container, last = next(iter(containers(data))), list(containers(data))[-2]
    assert after[: first_container.offset + 8] == data[: first_container.offset + 8]
    assert after[last.end :] == data[last.end :]
    for old, new in zip(containers(data), containers(after), strict=True):
        assert new.offset == old.offset
        stored = [data[e.offset : e.offset + e.size] for e in old.entries]
        kept = [after[e.offset : e.offset + e.size] for e in new.entries]
        assert [s for s in stored if s in kept] == kept
        assert not after[new.end : old.end].strip(b"\0")


def stack(folder: Path) -> Path:
    """What an image has installed: TensorFlow, a library of NVIDIA's, and one of neither."""
    site = folder / "venv/lib/python3.11/site-packages"
    data = library(container(*EVERYTHING))
    install(site, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": data})
    install(site, "nvidia-cublas-cu12", "12.5.3.2", {"nvidia/cublas/lib/libcublas.so.12": data})
    install(site, "torch", "2.9", {"torch/lib/libtorch_cuda.so": data})
    return folder


@pytest.mark.parametrize(
    ("only", "changed"),
    [
        ("tensorflow", {"libtensorflow_cc.so.2"}),
        ("all", {"libtensorflow_cc.so.2", "libcublas.so.12"}),
    ],
)
def test_only_what_was_asked_for_is_pruned(tmp_path: Path, only: str, changed: set[str]) -> None:
    done = pruning.prune(stack(tmp_path), compute_capability("7.0"), only)
    assert {p.path.name for p in done if p.changed} == changed
    site = tmp_path / "venv/lib/python3.11/site-packages"  # which may be named itself
    assert [p.path for p in pruning.prune(site, compute_capability("7.0"), only)]
    untouched = library(container(*EVERYTHING))
    same = {p.name for p in tmp_path.rglob("*.so*") if p.read_bytes() == untouched}
    assert same == {"libtensorflow_cc.so.2", "libcublas.so.12", "libtorch_cuda.so"} - changed


@pytest.mark.parametrize("device", ["7.0", "7.5", "9.0"])
def test_a_stack_pruned_for_an_a100_offered_to_others(device: str, tmp_path: Path) -> None:
    data = library(
        container(sass(60), sass(70), sass(80), sass(90), ptx(90)),
        container(sass(80), sass(90)),
        more=(Part(".rodata", container(sass(60), sass(70), sass(80), ptx(90))),),
    )
    install(tmp_path, "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": data})
    pruning.prune(tmp_path, compute_capability("8.0"))
    audit = Audit(inventory.of_folder(tmp_path))
    assert audit.verdict("8.0").status == Support.NATIVE
    assert audit.verdict("8.9").status == Support.OLDER_MINOR, "an L4 runs what an A100 runs"
    verdict = audit.verdict(device)
    assert verdict.status == Support.MISSING
    assert verdict.instead == f"the same version, not pruned or pruned for {device}"


def test_hard_links_keep_what_they_had(tmp_path: Path) -> None:
    """Installers link files from a cache that other environments use."""
    (tmp_path / "cached").write_bytes(library(container(*EVERYTHING)))
    os.link(tmp_path / "cached", tmp_path / "lib.so")
    pruning.prune_file(tmp_path / "lib.so", compute_capability("7.0"))
    assert (tmp_path / "cached").read_bytes() == library(container(*EVERYTHING))
    assert carried(tmp_path / "lib.so") == [["sm_70"]]


def test_a_malformed_library_is_named_and_not_changed(tmp_path: Path) -> None:
    site = stack(tmp_path) / "venv/lib/python3.11/site-packages"
    path = site / "tensorflow/libtensorflow_cc.so.2"
    path.write_bytes(path.read_bytes()[:-70])
    before = path.read_bytes()
    with pytest.raises(Malformed, match=r"libtensorflow_cc\.so\.2: cut off"):
        pruning.prune(tmp_path, compute_capability("7.0"))
    assert path.read_bytes() == before


def flipped(written: bytes, at: int) -> bytes:
    return written[:at] + bytes([written[at] ^ 0x08]) + written[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "size": lambda written, at, end: flipped(written, at + 8),
    "payload": lambda written, at, end: flipped(written, at + 16 + 64 + 5),
    "elsewhere": lambda written, at, end: flipped(written, at - 1),
    "tail": lambda written, at, end: written[: end - 1] + b"\1" + written[end:],
    "file end": lambda written, at, end: flipped(written, len(written) - 1),
    "shorter": lambda written, at, end: written[:-1],
    "no container": lambda written, at, end: written[:at] + bytes(end - at) + written[end:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_write_is_seen_and_the_library_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Each kind of damage to the written file, done behind the writer's back."""
    data = library(container(*EVERYTHING))
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    (whole,) = containers(data)
    write = pruning._write

    def write_and_damage(before, out, plan) -> None:  # type: ignore[no-untyped-def]
        write(before, out, plan)
        out.flush()
        out.seek(0)
        written = out.read()
        out.seek(0)
        out.truncate()
        out.write(DAMAGES[damage](written, whole.offset, whole.end))

    monkeypatch.setattr(pruning, "_write", write_and_damage)
    with pytest.raises(CheckFailed):
        pruning.prune_file(path, compute_capability("7.0"))
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_library_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack(tmp_path)

    def full(before, out, start, end) -> None:  # type: ignore[no-untyped-def]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pruning, "_copy", full)
    assert main(["prune", str(tmp_path), "--keep", "7.0"]) == 3
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.rglob(".pruning-*"))
    assert len({p.read_bytes() for p in tmp_path.rglob("*.so*")}) == 1


def test_the_folder_runs_alone_inside_an_image_build(tmp_path: Path) -> None:
    """Copied under another name, with no factory beside it, as a plain folder."""
    alone = tmp_path / "tools" / "dc"
    shutil.copytree(Path(pruning.__file__).parent, alone)
    stack(tmp_path / "image")
    command = [sys.executable, "-I", "-W", "error", str(alone)]
    command += ["prune", "image", "--keep", "7.0", "--only", "all"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "CUDA EULA forbid" in run.stdout
    assert "kept for 7.0: 2 of 2 libraries changed" in run.stdout
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 of 2 libraries changed" in again.stdout
    own = [*command[:-2], "--only", "tensorflow"]
    assert "EULA" not in subprocess.run(own, cwd=tmp_path, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("folder", "keep", "message"),
    [
        ("nowhere", "7.0", "no such folder"),
        (".", "V100", "not a compute capability"),
        (".", "7.0", "no library with device code"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: str,
    keep: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prune", folder, "--keep", keep]) == 2
    assert message in capsys.readouterr().err
