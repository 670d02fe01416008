"""What can be known of a TPU without TensorFlow: device files, PCI ids, the variables of libtpu.

A chip is a file /dev/accel<n> (up to v4) or /dev/vfio/<n> (later ones), and a PCI device of Google
(source: tpu-info of Google's cloud-accelerator-diagnostics, device.py; JAX, hardware_utils.py). GKE
and TPU VMs tell libtpu the model and the chips in variables (sources: Google Cloud, GKE, TPUs;
PyTorch/XLA, tpu.py; Ray, accelerators/tpu.py). What is not known is never a reason to
refuse.

Like the guard, this imports nothing but Python's standard library.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_GOOGLE = "0x1ae0"
_MODELS = {
    ("0x0027", "0x004e"): "v2",
    ("0x0027", "0x004f"): "v3",
    ("0x005e", ""): "v4",
    ("0x0062", ""): "v5p",
    ("0x0063", ""): "v5e",
    ("0x006f", ""): "v6e",
    ("0x0076", ""): "7x",
}
"""PCI device and, where two models share it, subsystem device. Source: tpu-info, device.py."""
_VISIBLE = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_TYPE = "TPU_ACCELERATOR_TYPE"
_GIVE = (
    "start the container with docker run --privileged, or in GKE with the limit google.com/tpu of "
    "the whole machine"
)


def files(root: Path = Path("/")) -> list[Path]:
    """Return the device files of a TPU's chips."""
    devices = [*root.glob("dev/accel[0-9]*"), *root.glob("dev/vfio/[0-9]*")]
    return sorted(devices, key=lambda device: (len(device.name), device.name))


def missing(
    name: str,
    chips: int,
    environment: Mapping[str, str],
    root: Path = Path("/"),
    part: bool = False,
) -> str:
    """Return why the TPU that is paid for cannot be used; "" if it can, or if nothing is known.

    name: `TPU`, or with its model `TPU-v5e`. chips: of this host; 1 where that is not known.
    part: a launcher may give this process a part of the chips (TPU_VISIBLE_CHIPS).
    """
    if importlib.util.find_spec("libtpu") is None:
        return "this image has no libtpu: take the image for a TPU"
    here = files(root)
    if not here:
        if "TPU_NAME" in environment or "TPU_NODE_NAME" in environment:  # reached by network
            return ""
        return f"neither /dev/accel* nor /dev/vfio/* is here: run it on a TPU VM, and {_GIVE}"
    models = on_pci(root)
    visible = _visible(environment)
    wanted = min(chips, visible) if part and visible else chips
    return (
        _another(name, models, environment)
        or _closed(here)
        or _too_few(wanted, here, len(models))
        or _hidden(wanted, visible, len(here), environment)
    )


def on_pci(root: Path = Path("/")) -> list[str]:
    """Return the model of each chip on the PCI bus; [] where /sys does not show it."""
    models = []
    for vendor in sorted(root.glob("sys/bus/pci/devices/*/vendor")):
        if _read(vendor) != _GOOGLE:
            continue
        device, part = _read(vendor.with_name("device")), vendor.with_name("subsystem_device")
        model = _MODELS.get((device, "")) or _MODELS.get((device, _read(part)))
        models += [model] if model else []
    return models


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _another(name: str, models: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return why it is a TPU of another model, by PCI, or else by the variable; "": it is not."""
    wanted = name[len("TPU") :].lstrip("-").lower()
    type_name = environment.get(_TYPE, "").lower()
    named = re.match(r"(?:tpu-?)?(v[0-9]+[a-z]*|7x)", type_name)
    model = models[0] if models else named[1].replace("v5litepod", "v5e") if named else ""
    if not (wanted and model) or model == wanted or (not models and model == "v5"):
        return ""
    where = "the TPU here" if models else f"{_TYPE}={environment[_TYPE]}"
    return f"{where} is a {model}: take a machine with {name}, or the job for this TPU"


def _closed(here: Sequence[Path]) -> str:
    """Return why this user may not open the chips; "": it may."""
    for file in here:
        if not os.access(file, os.R_OK | os.W_OK):
            return f"the user {os.getuid()} may not open {file}: {_GIVE}, as a user that may"
    return ""


def _too_few(wanted: int, here: Sequence[Path], machine: int) -> str:
    if len(here) >= wanted:
        return ""
    short = f"{', '.join(map(str, here))} alone, of {wanted} chips, is"
    if machine >= wanted:
        return f"{short} in this container: {_GIVE}"
    return f"{short} here: take a machine with {wanted}, and {_GIVE}"


def _visible(environment: Mapping[str, str]) -> int | None:
    """Return how many chips the variables leave to this process; None: they say nothing."""
    for key in _VISIBLE:
        words = environment.get(key, "").replace(" ", "").split(",")
        if all(word.isdecimal() for word in words):
            return len(set(words))
    return None


def _hidden(wanted: int, visible: int | None, here: int, environment: Mapping[str, str]) -> str:
    if visible is None or visible >= wanted:
        return ""
    key = next(key for key in _VISIBLE if environment.get(key))
    return f"{key}={environment[key]} shows {visible} of the {here} chips here: remove it"
