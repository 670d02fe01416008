"""A folder of pictures for the tests of making records."""

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """20 reddish and 20 grey pictures, PNG and JPEG, of different sizes."""
    folder = tmp_path / "pictures"
    for name in ("red", "grey"):
        (folder / name / "more").mkdir(parents=True)
    for number in range(20):
        size = (8 + number, 12)
        red = Image.new("RGB", size, (200, number, number))
        red.save(
            folder / "red" / f"{number}.{('png', 'JPG')[number % 2]}",
            "png" if number % 2 == 0 else "jpeg",
        )
        Image.new("L", size, 5 * number).save(folder / "grey" / "more" / f"{number}.png")
    (folder / "grey" / "notes.txt").write_text("not a picture")
    (folder / "grey" / "more" / "0.png").rename(folder / "grey" / "0.png")
    (folder / "red" / ".DS_Store").write_text("no picture either")
    return folder
