"""The errors of this package, also where it runs without the rest of the factory.

Inside an image build the folder is mounted alone, on whatever Python the image has (3.9 or newer),
so `builder.core.errors` may be missing; the two classes below then have the same fields.
"""

from __future__ import annotations

try:
    from builder.core.errors import CheckFailed, InputError
except ImportError:  # inside an image build

    class _Error(Exception):
        exit_code = 1

        def __init__(self, message: str, fix: str = "") -> None:
            super().__init__(message)
            self.message = message
            self.fix = fix

    class InputError(_Error):  # type: ignore[no-redef]
        """Something the user wrote."""

        exit_code = 2

    class CheckFailed(_Error):  # type: ignore[no-redef]  # noqa: N818
        """A check that did not pass."""

        exit_code = 4


class Malformed(CheckFailed):
    """A library whose bytes contradict themselves: nothing may be concluded from it."""


__all__ = ["CheckFailed", "InputError", "Malformed"]
