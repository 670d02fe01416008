"""Captions and confusion matrices as pictures, drawn with NumPy alone."""

from collections.abc import Sequence

import numpy as np

_GLYPHS = {
    "A": "0E11111F111111", "B": "1E11111E11111E", "C": "0E11101010110E", "D": "1E11111111111E",
    "E": "1F10101E10101F", "F": "1F10101E101010", "G": "0E11101713110F", "H": "1111111F111111",
    "I": "0E04040404040E", "J": "0702020202120C", "K": "11121418141211", "L": "1010101010101F",
    "M": "111B1515111111", "N": "11191513111111", "O": "0E11111111110E", "P": "1E11111E101010",
    "Q": "0E11111115120D", "R": "1E11111E141211", "S": "0F10100E01011E", "T": "1F040404040404",
    "U": "1111111111110E", "V": "11111111110A04", "W": "11111115151B11", "X": "11110A040A1111",
    "Y": "11110A04040404", "Z": "1F01020408101F", "0": "0E11131519110E", "1": "040C040404040E",
    "2": "0E11010204081F", "3": "1F02040201110E", "4": "02060A121F0202", "5": "1F101E0101110E",
    "6": "0608101E11110E", "7": "1F010204080808", "8": "0E11110E11110E", "9": "0E11110F01020C",
    " ": "00000000000000", ".": "00000000000C0C", ",": "000000000C0408", "-": "0000001F000000",
    "_": "0000000000001F", ":": "000C0C000C0C00", "/": "00010204081000", "%": "18190204081303",
    ">": "08040201020408", "(": "02040808080402", ")": "08040202020408", "?": "0E110102040004",
}  # fmt: skip
"""Seven rows of five bits, two hex digits a row, top first; small letters are drawn as capitals."""
ADVANCE, LINE = 6, 9
"""Pixels from one letter to the next and from one line to the next."""
_INK, _PAPER = 32, 255


def text(canvas: np.ndarray, words: str, left: int, top: int, ink: Sequence[int] = (_INK,)) -> None:
    """Write a line onto uint8 [height, width, 3]; letters that do not fit are cut off."""
    for number, letter in enumerate(words.upper()):
        code = bytes.fromhex(_GLYPHS.get(letter, _GLYPHS["?"]))
        for row, bits in enumerate(code):
            for column in range(5):
                y, x = top + row, left + number * ADVANCE + column
                inside = 0 <= y < canvas.shape[0] and 0 <= x < canvas.shape[1]
                if bits >> (4 - column) & 1 and inside:
                    canvas[y, x] = ink


def captioned(image: np.ndarray, lines: Sequence[str], least: int = 128) -> np.ndarray:
    """uint8 [h, w, 3], enlarged by a whole factor to `least` pixels, above lines of text."""
    factor = max(1, -(-least // image.shape[1]))
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width, _ = large.shape
    canvas = np.full((height + len(lines) * LINE + 3, width, 3), _PAPER, np.uint8)
    canvas[:height] = large
    for number, line in enumerate(lines):
        fits = width // ADVANCE
        text(
            canvas,
            line if len(line) <= fits else line[: fits - 1] + ".",
            1,
            height + 2 + number * LINE,
        )
    return canvas


def confusion(matrix: np.ndarray, names: Sequence[str], cell: int = 28) -> np.ndarray:
    """Counts [true, predicted] as a picture; a darker cell has a larger share of its row.

    Rows are true classes, columns predicted ones; correct cells are green, wrong ones red.
    """
    classes = len(names)
    cell = cell if classes <= 20 else max(4, 560 // classes)
    label = max(len(name) for name in names) if cell >= LINE else 0
    label = min(label, 14)
    left, top = (label + 1) * ADVANCE + 4, 2 * LINE + 4
    canvas = np.full((top + classes * cell + 1, max(left + classes * cell + 1, 160), 3), _PAPER)
    canvas = canvas.astype(np.uint8)
    text(canvas, "row: true, column: predicted", 1, 1)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for row in range(classes):
        if label:
            text(canvas, names[row][:label], 1, top + row * cell + (cell - 7) // 2)
            width = max(1, cell // ADVANCE)
            text(canvas, names[row][:width], left + row * cell + 2, top - LINE)
        for column in range(classes):
            y, x = top + row * cell, left + column * cell
            share = float(shares[row, column])
            full = np.array((40, 140, 60) if row == column else (190, 40, 40))
            canvas[y + 1 : y + cell, x + 1 : x + cell] = 245 + (full - 245) * share
            count = str(int(matrix[row, column]))
            if cell >= LINE and len(count) * ADVANCE <= cell and matrix[row, column]:
                ink = (255,) if share > 0.5 else (_INK,)
                at = x + (cell - len(count) * ADVANCE) // 2 + 1
                text(canvas, count, at, y + (cell - 7) // 2, ink)
    return canvas
