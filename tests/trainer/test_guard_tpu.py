"""The guard on a TPU's host, with a tree of device files and PCI ids: what it refuses."""

from pathlib import Path

import pytest

from trainer import guard
from trainer.guard import tpu

V3, V5E = ("0x0027", "0x004f"), ("0x0063", "0x0000")


def host(root: Path, chips: int, model: tuple[str, str] | None = V5E, on_pci: int = -1) -> Path:
    """A host with device files of chips, and with as many on the PCI bus unless told."""
    folder = root / ("dev" if model == V3 else "dev/vfio")
    folder.mkdir(parents=True)
    for number in range(chips):
        (folder / (f"accel{number}" if model == V3 else str(number))).touch()
    if model != V3:
        (folder / "vfio").touch()  # the container of the groups, no chip
    for number in range(chips if on_pci < 0 else on_pci):
        pci(root, number, "0x1ae0", *(model or ("0x0001", "0x0000")))
    pci(root, 99, "0x8086", "0x0063", "0x0000")  # of another vendor
    return root


def pci(root: Path, number: int, vendor: str, device: str, subsystem: str) -> None:
    folder = root / f"sys/bus/pci/devices/0000:00:{number:02}.0"
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("subsystem_device", subsystem)):
        (folder / name).write_text(value + "\n")


@pytest.fixture(autouse=True)
def libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu.importlib.util, "find_spec", lambda name: object())


def cause(root: Path, paid: str, part: bool = False, **variables: str) -> str:
    wanted = guard.expected(paid, "")
    assert wanted is not None
    return tpu.missing(wanted.name, wanted.count, variables, root, part)


REFUSED: dict[str, tuple[str, int, dict[str, str], str]] = {
    "a part of the chips": (
        "TPU-v5e:4,topology=2x2",
        1,
        {},
        "dev/vfio/0 alone, of 4 chips, is in this container: start the container with docker run",
    ),
    "hidden": (
        "TPU-v5e:4,topology=2x2",
        4,
        {"TPU_VISIBLE_CHIPS": "0,1"},
        "TPU_VISIBLE_CHIPS=0,1 shows 2 of the 4 chips here: remove it",
    ),
    "hidden by the older variable": (
        "TPU-v5e:4",
        4,
        {"TPU_VISIBLE_DEVICES": "2"},
        "TPU_VISIBLE_DEVICES=2 shows 1 of the 4 chips",
    ),
    "a smaller machine": (
        "TPU-v5e:5",
        1,
        {},
        "dev/vfio/0 alone, of 5 chips, is here: take a machine with 5",
    ),
    "another model": ("TPU-v3:4", 4, {}, "the TPU here is a v5e: take a machine with TPU-v3, or"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tpu_that_is_not_what_was_paid_for_is_refused(case: str, tmp_path: Path) -> None:
    paid, chips, variables, said = REFUSED[case]
    found = cause(host(tmp_path, chips, on_pci=4), paid, **variables)
    assert said in found and "\n" not in found


GOOD: dict[str, tuple[str, int, tuple[str, str] | None, dict[str, str]]] = {
    "as paid for": ("TPU-v5e:4,topology=2x2", 4, V5E, {}),
    "the image says no more than TPU": ("TPU", 4, V5E, {}),
    "an older model": ("TPU-v3:4", 4, V3, {"TPU_ACCELERATOR_TYPE": "v3-8"}),
    "a model that is in no table": ("TPU-v5e:4", 4, None, {}),
    "the bus is not shown": ("TPU-v5e:4", 4, V5E, {"TPU_ACCELERATOR_TYPE": "v5litepod-4"}),
    "words that nobody can read": ("TPU-v5e:4", 4, V5E, {"TPU_VISIBLE_CHIPS": ""}),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_tpu_that_is_there_is_not_refused(case: str, tmp_path: Path) -> None:
    paid, chips, model, variables = GOOD[case]
    shown = 0 if case == "the bus is not shown" else -1
    assert cause(host(tmp_path, chips, model, shown), paid, **variables) == ""


def test_the_type_tells_the_model_where_the_bus_is_not_shown(tmp_path: Path) -> None:
    root = host(tmp_path, 4, on_pci=0)
    other = cause(root, "TPU-v5e:4", TPU_ACCELERATOR_TYPE="v4-8")
    assert other.startswith("TPU_ACCELERATOR_TYPE=v4-8 is a v4: take a machine with TPU-v5e")
    assert cause(root, "TPU-v5e:4", TPU_ACCELERATOR_TYPE="tpu-v5-lite-podslice") == ""


def test_a_launcher_may_give_a_part_to_each_process(tmp_path: Path) -> None:
    part = {"TPU_VISIBLE_CHIPS": "0"}
    root = host(tmp_path, 4)
    assert cause(root, "TPU-v5e:4,topology=2x2", part=True, **part) == ""
    assert cause(root, "TPU-v5e:4,topology=2x2", **part) != ""


def test_device_files_that_the_user_may_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = host(tmp_path, 4, V3)
    monkeypatch.setattr(tpu.os, "access", lambda file, mode: file.name != "accel2")
    assert f"may not open {tmp_path}/dev/accel2: start the container" in cause(root, "TPU-v3:4")


def test_without_device_files_only_a_tpu_of_the_network_is_left(tmp_path: Path) -> None:
    assert cause(tmp_path, "TPU-v3:4").startswith("neither /dev/accel* nor /dev/vfio/* is here")
    assert cause(tmp_path, "TPU-v3:4", TPU_NAME="local") == ""


def test_the_trainers_guard_says_what_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "files", lambda root=None: [])
    with pytest.raises(guard.Refused) as refused:
        guard.check("TPU-v5e:4,topology=4x4", {})
    said = "this job is paid for TPU-v5e with 4 chips a host with topology 4x4, and neither"
    assert str(refused.value).startswith(said)
    monkeypatch.setattr(tpu.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(guard.Refused, match="paid for TPU-v3, and this image has no libtpu"):
        guard.check("TPU-v3", {})
