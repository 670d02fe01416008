"""Captions and confusion matrices as pictures, drawn with Pillow."""

from collections.abc import Sequence

import numpy as np

_LINE = 13
"""Pixels of a line of text."""
_INK, _PAPER = (32, 32, 32), (255, 255, 255)
_RIGHT, _WRONG, _NONE = (40, 140, 60), (190, 40, 40), (245, 245, 245)


def captioned(image: np.ndarray, lines: Sequence[str], least: int = 128) -> np.ndarray:
    """Return uint8 [h, w, 3], enlarged by a whole factor to `least` pixels, above lines of text."""
    from PIL import Image, ImageDraw

    factor = max(1, -(-least // image.shape[1]))
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width, _ = large.shape
    canvas = Image.new("RGB", (width, height + len(lines) * _LINE + 3), _PAPER)
    canvas.paste(Image.fromarray(large), (0, 0))
    for number, line in enumerate(lines):
        ImageDraw.Draw(canvas).text((1, height + number * _LINE), line, _INK)
    return np.asarray(canvas)


def confusion(matrix: np.ndarray, names: Sequence[str], cell: int = 28) -> np.ndarray:
    """Return counts [true, predicted] as a picture; a darker cell has a larger share of its row.

    Rows are true classes, columns predicted ones; correct cells are green, wrong ones red.
    """
    from PIL import Image, ImageDraw

    classes = len(names)
    cell = cell if classes <= 20 else max(4, 560 // classes)
    written = cell > _LINE
    left, top = (100 if written else 4), 2 * _LINE + 4
    size = (max(left + classes * cell + 1, 200), top + classes * cell + 1)
    canvas = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((1, 1), "row: true, column: predicted", _INK)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for row, name in enumerate(names):
        y = top + row * cell
        if written:
            draw.text((1, y + (cell - _LINE) // 2), name[:14], _INK)
            draw.text((left + row * cell + 2, _LINE + 2), name[:4], _INK)
        for column in range(classes):
            x, share = left + column * cell, float(shares[row, column])
            full = _RIGHT if row == column else _WRONG
            colour = tuple(round(a + (b - a) * share) for a, b in zip(_NONE, full, strict=True))
            draw.rectangle((x + 1, y + 1, x + cell - 1, y + cell - 1), colour)
            if written and matrix[row, column]:
                ink = _PAPER if share > 0.5 else _INK
                middle = (x + cell // 2, y + cell // 2)
                draw.text(middle, str(int(matrix[row, column])), ink, anchor="mm")
    return np.asarray(canvas)
