"""Every error a user can meet: what is wrong, how to fix it, and the exit code.

Exit codes: 2 the user wrote something that cannot be right, 3 the outside world (engine, registry,
network) refused, 4 a check did not pass.
"""


class FactoryError(Exception):
    """One line of what is wrong (`message`) and one of how to fix it (`fix`)."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class InputError(FactoryError):
    """Something the user wrote: names file, line and field where there are any."""

    exit_code = 2


class OutsideError(FactoryError):
    """An engine, a registry or a network that refused or is missing."""

    exit_code = 3


class CheckFailed(FactoryError):  # noqa: N818 - not a fault of the program: a check said no
    """A check that did not pass."""

    exit_code = 4
