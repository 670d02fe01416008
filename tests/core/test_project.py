"""Where a project is, and what its images are called on an engine that others use, too."""

from pathlib import Path

import pytest

from builder.core import project


@pytest.mark.parametrize(
    ("folder", "tag"),
    [
        ("/home/a/flowers", "flowers-cpu"),
        ("/home/a/My Flowers (2)", "my-flowers-2-cpu"),
        ("/home/a/packages/digits", "digits-cpu"),
        ("/", "cpu"),
        ("/home/" + "a" * 100, "a" * 40 + "-cpu"),
    ],
)
def test_the_tag_on_the_engine_has_the_name_of_the_projects_folder(folder: str, tag: str) -> None:
    assert project.tag_of(Path(folder), "cpu") == tag
