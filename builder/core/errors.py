"""The errors that a user can meet: what is wrong, how to fix it, and the exit code.

Exit codes: 2 the user wrote something wrong, 3 the outside world (engine, registry, network)
refused, 4 a check did not pass; 1 is a fault of the factory.
"""


class FactoryError(Exception):
    """What is wrong (`message`), and how to fix it (`fix`); a line each."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(FactoryError):
    """Something that the user wrote is wrong; names file, line and field where there are any."""

    exit_code = 2


class OutsideError(FactoryError):
    """An engine, a registry or a network refused, or is missing."""

    exit_code = 3


class CheckFailed(FactoryError):  # noqa: N818 - not a fault of the program: a check said no
    """A check that did not pass."""

    exit_code = 4
