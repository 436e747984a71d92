"""What can go wrong, in sentences that say what was wrong and what to do."""


class SemimetricError(Exception):
    """Base of every error that this library raises on purpose; the command line prints it without a traceback."""


class InputError(SemimetricError, ValueError):
    """An argument, an array or a setting cannot be used as it is."""


class DataError(SemimetricError):
    """A dataset is missing, incomplete or damaged."""


class DataWarning(UserWarning):
    """A dataset can be used, but is not as it was published."""


class RunError(SemimetricError):
    """A run folder cannot be written, read or continued."""


class DivergedError(SemimetricError):
    """Training produced values that are not finite."""
