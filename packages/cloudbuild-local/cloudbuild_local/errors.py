"""Errors that a user can meet: what is wrong, how to fix it, and the exit code of the command."""

import re


class BuildError(Exception):
    """What is wrong (`message`) and how to fix it (`fix`), one line each."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(BuildError):
    """Something that the user wrote is wrong: a file, or an option of the call."""

    exit_code = 2


class OutsideError(BuildError):
    """The engine, a registry or Google refused, or did not answer."""

    exit_code = 3


class BuildFailedError(BuildError):
    """The build ran and failed."""

    exit_code = 4


def masked(text: str) -> str:
    """Return the text with `***` for the user and the password of each URL in it."""
    return re.sub(r"(\w://)[^/\s'\"]+@", r"\1***@", text)
