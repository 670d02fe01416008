"""What setup.py says is read where it stands there as text; no text inside of what is computed is
taken for a package."""

from __future__ import annotations

import pytest

from builder.init import setup_py

TOP = """\
import os
from setuptools import setup
RELEASE = "0.4.16"
TESTS = ["pytest"]
EXTRAS = {"dev": TESTS + ["ruff"]}
EXTRAS["train"] = ["optax", *TESTS]
NEEDS = ["rich"]
NEEDS += ["tqdm"]
NEEDS.append(f"jax >= {RELEASE}")
if os.name:
    NEEDS.append("pandas")
"""


def said(arguments: str, *groups: str) -> tuple[list[str], list[str]]:
    """What is taken as a requirement, and what is named."""
    every = list(setup_py.read(f"{TOP}setup({arguments})\n", "setup.py", frozenset(groups)))
    taken = [each.text for each in every if each.kind == "requirement" and not each.why]
    return taken, [each.text for each in every if each.why]


@pytest.mark.parametrize(
    "computed",
    [
        "read('base')",
        "os.environ.get('TORCH', 'torch')",
        "'{}=={}'.format('internal', 1)",
        "f'ours-{os.name}'",
        "'pandas' if os.name else 'polars'",
        "*read('base')",
        "UNKNOWN",
    ],
)
def test_a_text_inside_of_what_is_computed_is_no_package(computed: str) -> None:
    taken, left = said(f"install_requires=['rich', {computed}, 'a' + '<2']")
    assert taken == ["rich", "a<2"]
    assert left == [f"install_requires is computed ({computed.removeprefix('*')})"]
    taken, left = said(f"extras_require={{'train': [{computed}] + ['optax']}}", "train")
    assert taken == ["optax"] and len(left) == 1, "the Dockerfile installs it"


def test_lists_are_followed_through_names_and_sums() -> None:
    taken, left = said("install_requires=list(NEEDS) + ['absl-py'], extras_require=EXTRAS", "train")
    assert taken == ["rich", "tqdm", "jax >= 0.4.16", "absl-py", "optax", "pytest"]
    assert left == ["install_requires is computed ('pandas' if ... else ...)", "pytest", "ruff"]
    assert said("extras_require=dict(dev=TESTS, all=x)") == (
        [],
        ["pytest", "extras_require is computed (x)"],
    )


def test_what_an_image_cannot_do_for_the_package_is_named() -> None:
    text = "ext_modules=[x], cmdclass={'build_ext': x}, setup_requires=['numpy'], tests_require=[]"
    assert said(f"{text}, dependency_links=['https://a.example']") == (
        [],
        ["ext_modules", "cmdclass", "setup_requires", "tests_require", "dependency_links"],
    )


def test_a_file_that_is_too_deep_is_named() -> None:
    deep = "'a'" + " + 'a'" * 30_000
    (only,) = setup_py.read(f"setup(install_requires=[{deep}])", "setup.py")
    assert "no Python that can be read" in only.why
