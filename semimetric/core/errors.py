"""Errors and warnings. Messages say what is wrong and what to do."""


class SemimetricError(Exception):
    """Base of all errors that this library raises; the command line prints them without a traceback."""


class InputError(SemimetricError, ValueError):
    """An argument, array or setting is invalid."""


class DataError(SemimetricError):
    """A dataset is missing, incomplete or damaged."""


class DataWarning(UserWarning):
    """A dataset can be used, but differs from the published one."""


class RunError(SemimetricError):
    """A run folder cannot be written, read or resumed."""


class DivergedError(SemimetricError):
    """Training produced values that are not finite."""
