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
