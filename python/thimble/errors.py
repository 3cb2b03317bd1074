"""errors.py: the package's exceptions. Each mirrors an exit code of the program, and names the file, the object, what
was found and what is allowed."""


class Error(Exception):
    """Whatever thimble refuses or can't do. `exit_code` is that of the program; here: a fault of thimble itself."""

    exit_code = 1


class UsageError(Error, ValueError):
    """An argument is not what it may be."""

    exit_code = 2


class CheckError(Error):
    """A budget, or a check that was asked for, is not met."""

    exit_code = 3


class FormatError(Error, ValueError):
    """A file's contents are not what they must be: damaged, cut off, of another version, or another kind of file."""

    exit_code = 4


class IoError(Error, OSError):
    """Reading or writing failed: a missing file, no permission, a full disk."""

    exit_code = 5


class DeviceError(Error, RuntimeError):
    """A device is missing or failed."""

    exit_code = 6


_BY_CODE = {kind.exit_code: kind for kind in (Error, UsageError, CheckError, FormatError, IoError, DeviceError)}


def error_of(code: int, text: str) -> Error:
    """The exception for an exit code of the program."""
    return _BY_CODE.get(code, Error)(text)
