"""Plain data out of a pickle without executing it; what the data means is `snapshot`'s."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import IO, Any, NoReturn

from memprof.errors import FileFormatError, UnsafeFileError

__all__ = ["load_plain_pickle"]

_GZIP_MAGIC = b"\x1f\x8b"


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler to whom every global is refused, so that only builtin data can come out."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafeFileError(
            f"the file asks for the Python object {module}.{name}; loading it would run code",
            "a snapshot written by torch.cuda.memory._dump_snapshot holds plain data only: "
            "do not trust this file",
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise UnsafeFileError(
            f"the file refers to an object outside itself ({str(pid)[:80]})",
            "torch.save files are not snapshots; use torch.cuda.memory._dump_snapshot",
        )


def load_plain_pickle(path: Path) -> Any:
    """The lists, dicts, strings and numbers in a pickle, plain or gzipped.

    Raises:
        UnsafeFileError: the pickle names a global or a persistent object.
        FileFormatError: it is torn, no pickle at all, or cannot be opened.
    """
    try:
        with _open(path) as file:
            return _PlainUnpickler(file).load()
    except FileFormatError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise FileFormatError(f"cannot read {path}: {reason}") from error
    # A damaged pickle can make the C unpickler raise nearly anything; none of it is ours to fix.
    except Exception as error:
        raise FileFormatError(
            f"{path} is not a whole pickle ({type(error).__name__}: {error})",
            "was the job killed while it wrote? a snapshot is usable only when complete",
        ) from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        gzipped = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rb") if gzipped else path.open("rb")  # type: ignore[return-value]
