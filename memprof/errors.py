"""The errors a user can meet; what cannot be measured is ``None``, never an error.

::

    MemprofError                 something a person can act on: a message and a hint
    ├── FileFormatError          a file is not what it should be, torn beyond use, or too new
    │   └── UnsafeFileError      a pickle names a global: loading it would execute code
    ├── SettingsError            an option, a size or an allocator setting is wrong
    └── MissingError             torch, a framework, a device or a permission is not there
"""

from __future__ import annotations

__all__ = ["FileFormatError", "MemprofError", "MissingError", "SettingsError", "UnsafeFileError"]


class MemprofError(Exception):
    """What went wrong in one sentence, and in ``hint`` what to do about it.

    The command line prints both and exits with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        """``message`` says what is wrong; ``hint`` what to type or change (may be empty)."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class FileFormatError(MemprofError):
    """A file that memprof was asked to read is not a run or a snapshot that it can read."""


class UnsafeFileError(FileFormatError):
    """A snapshot pickle asks for a global, so reading it would execute code; it was not read."""


class SettingsError(MemprofError):
    """An option's value is wrong: a size, an allocator setting, a name."""

    exit_code = 2


class MissingError(MemprofError):
    """Something this needs is not installed, not present or not permitted."""
