"""Pins of Python packages: their file, the wheel that is taken, and its size."""

import pytest

from builder.config import pins, uv
from builder.config.network import BuildNetwork
from builder.config.pins import Pin
from builder.config.uv import Platform

PYTHON_311 = Platform("3.11", 36)


def test_a_pins_file_reads_back_as_it_was_written() -> None:
    two = (Pin("keras", "3.15.1", "a" * 64, 1_500_000), Pin("numpy", "2.4.6", "b" * 64))
    text = pins.dump(reversed(two), "Why it is there.")
    assert pins.parse(text) == two
    assert text == (
        "# Why it is there.\n"
        "keras==3.15.1 \\\n"
        f"    --hash=sha256:{'a' * 64}  # 1500000 bytes\n"
        "numpy==2.4.6 \\\n"
        f"    --hash=sha256:{'b' * 64}\n"
    )


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["a-1-py3-none-any.whl"], "a-1-py3-none-any.whl"),
        (
            [
                "a-1-py3-none-any.whl",
                "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            ],
            "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        ),
        (
            ["a-1-cp38-abi3-manylinux_2_28_x86_64.whl", "a-1-cp311-cp311-manylinux1_x86_64.whl"],
            "a-1-cp311-cp311-manylinux1_x86_64.whl",
        ),
        (["a-1-cp311-cp311-manylinux_2_39_x86_64.whl"], None),  # a newer glibc than the base has
        (["a-1-cp311-cp311-musllinux_1_2_x86_64.whl", "a-1-cp311-cp311-win_amd64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl"], None),
    ],
)
def test_the_wheel_that_an_installer_would_take(names: list[str], best: str | None) -> None:
    assert uv.best_wheel(names, PYTHON_311) == best


def test_a_known_size_is_not_asked_for_again_and_one_that_nobody_tells_stays_open() -> None:
    wanted = {"keras": Pin("keras", "3.15.1", "a" * 64, url="http://127.0.0.1:9/keras.whl")}
    known = [Pin("keras", "3.15.1", "a" * 64, 7)]
    assert uv.with_sizes(wanted, known, BuildNetwork())["keras"].bytes == 7
    assert uv.with_sizes(wanted, [], BuildNetwork())["keras"].bytes is None


def test_two_versions_of_a_package_are_asked_for_in_two_groups() -> None:
    old, new = Pin("h5py", "3.14.0", "a" * 64), Pin("h5py", "3.16.0", "b" * 64)
    other = Pin("numpy", "2.4.6", "c" * 64)
    assert uv.without_conflict([old, new, other, old]) == [
        {"h5py": old, "numpy": other},
        {"h5py": new},
    ]
