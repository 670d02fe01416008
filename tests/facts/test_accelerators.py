"""The tables: names a person may use, and that every value says where it comes from."""

from __future__ import annotations

import re

import pytest

from builder.core.errors import InputError
from builder.facts import DATA, Source, accelerators, cuda
from builder.frameworks.tensorflow import releases


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("V100", "V100"),
        ("v100", "V100"),
        ("NVIDIA_TESLA_V100", "V100"),
        ("nvidia-l4", "L4"),
        ("A100-40GB", "A100"),
        ("a100-80gb", "A100"),
        ("H100-MEGA-80GB", "H100"),
        ("TPU-v3", "TPU"),
        ("tpu-v6e", "TPU-v6e"),
        ("cpu", "CPU"),
    ],
)
def test_an_accelerator_is_found_by_any_of_its_names(written: str, name: str) -> None:
    assert accelerators.find(written).name == name


@pytest.mark.parametrize(
    ("written", "nearest"), [("V10", "V100"), ("A-100", "A100"), ("TPUv3", "TPU"), ("T40", "T4")]
)
def test_an_unknown_one_names_the_nearest(written: str, nearest: str) -> None:
    with pytest.raises(InputError) as raised:
        accelerators.find(written)
    assert raised.value.fix.startswith(f"write {nearest}; known: CPU, K80, ")


def test_one_like_no_other_names_all() -> None:
    with pytest.raises(InputError) as raised:
        accelerators.find("quantum")
    assert raised.value.fix.startswith("known: CPU, K80, ")


def test_what_an_image_needs_to_know_of_a_v100() -> None:
    v100 = accelerators.find("V100")
    assert v100.architecture is not None
    assert (v100.kind, v100.compute_capability, v100.precision) == ("gpu", "7.0", "float16")
    assert v100.architecture.name == "Volta"
    assert (v100.architecture.first_cuda, v100.architecture.last_cuda) == ("9.0", "12")
    assert v100.architecture.last_driver == "R580"


def test_every_table_names_a_source_for_every_row() -> None:
    """The loaders take a row's source by name, so an absent one cannot be loaded at all."""
    sources: list[Source] = []
    for accelerator in accelerators.accelerators().values():
        sources += [accelerator.source, accelerator.precision_source]
        sources += [accelerator.architecture.source] if accelerator.architecture else []
        sources += [accelerator.refused_source] if accelerator.refused_source else []
    known = cuda.cuda()
    rows = (*releases.releases(), *known.cudnn, *known.drivers, *known.ptx)
    sources += [row.source for row in rows]
    assert all(source.text and isinstance(source.verified, bool) for source in sources)
    unverified = {source.text for source in sources if not source.verified}
    assert len(unverified) == 1, "what is only heard: Grace"


def test_no_source_stands_unused() -> None:
    for path in (*DATA.glob("*.yaml"), *releases.DATA.glob("*.yaml")):
        text = path.read_text()
        names = re.findall(r"^  ([\w.-]+): \{text: ", text, re.MULTILINE)
        # of a service that was shut down: one source for all; rows that each have an address
        if path.name in ("aiplatform.yaml", "known_bad.yaml"):
            continue
        used = set(re.findall(r"source: ([\w.-]+)", text)) | {"precision"}
        assert names, path
        assert set(names) <= used, path


@pytest.mark.parametrize(
    ("written", "name", "capability"),
    [
        ("5090", "RTX-5090", "12.0"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090", "8.9"),
        ("rtx3090", "RTX-3090", "8.6"),
        ("A10", "A10", "8.6"),
        ("a10g", "A10G", "8.6"),
        ("L40S", "L40S", "8.9"),
        ("RTX PRO", "RTX-PRO", "12.0"),
        ("RTX PRO 6000", "RTX-PRO-6000", "12.0"),
        ("B300", "B300", "10.3"),
        ("GB200", "GB200", "10.0"),
        ("GB300", "GB300", "10.3"),
        ("GH200", "GH200", "9.0"),
        ("GB10", "GB10", "12.1"),
        ("Jetson AGX Thor", "Thor", "11.0"),
        ("V100", "V100", "7.0"),
    ],
)
def test_a_gpu_is_known_by_what_people_call_it(written: str, name: str, capability: str) -> None:
    assert accelerators.gpu(written) == (name, capability)
    assert accelerators.on_arm64(name) == (name in ("GB10", "GB200", "GB300", "GH200", "Thor"))


def test_a_gpu_that_images_are_made_for_is_none_of_the_others() -> None:
    known = {accelerators._key(name) for name in accelerators.accelerators()}
    assert known & accelerators._other_gpus().keys() == set(), "take it out of `gpus`"


def test_an_a10_is_no_a100() -> None:
    with pytest.raises(
        InputError, match=r"no image is made for A10 \(compute capability 8.6\)"
    ) as told:
        accelerators.find("A10")
    assert "--gpu 8.6" in told.value.fix
    assert "write A100" not in told.value.fix


def test_an_unknown_gpu_is_answered_with_compute_capabilities() -> None:
    with pytest.raises(InputError, match="no GPU is called 'A11'") as told:
        accelerators.gpu("A11")
    assert told.value.fix.startswith("write its compute capability, such as 8.6")
    with pytest.raises(InputError) as told:
        accelerators.gpu("RTX 4098")
    assert "or RTX-4090" in told.value.fix
