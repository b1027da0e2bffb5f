"""What runs inside a process that is entered: it lends the packages and opens the socket.

Its text is executed there. It takes the request first, which may have been withdrawn, and leaves no
name in the program.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["LentPackages", "enter"]


class LentPackages:
    """Finds whole packages in the folders of whoever attaches, and nothing else."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the import system's signature
    ) -> ModuleSpec | None:
        """The import system's question."""
        folder = self._folders.get(fullname)
        if path is not None or folder is None:
            return None
        return PathFinder.find_spec(fullname, [folder])


def enter(request: str) -> None:
    """Do what the file ``request`` says, and write beside it how it went; raises nothing."""
    own_path = Path(f"{request}.taken")
    try:
        Path(request).rename(own_path)
    except OSError:  # withdrawn
        return
    interrupted = False
    try:
        result = _opened(json.loads(own_path.read_text(encoding="utf-8")))
    except KeyboardInterrupt:  # the program's, which is to get it
        interrupted = True
        result = {"error": "the program was interrupted", "hint": ""}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the job goes on
        message = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
        result = {"error": message, "hint": getattr(error, "hint", "")}
    try:
        written = Path(f"{request}.written")
        written.write_text(json.dumps(result), encoding="utf-8")
        written.rename(f"{request}.result")
    except OSError:  # whoever asked has gone
        pass
    if interrupted:
        import _thread

        _thread.interrupt_main()


def _opened(parameters: dict[str, object]) -> dict[str, str]:
    if sys.implementation.name != "cpython" or sys.is_finalizing():
        raise RuntimeError("the process is no CPython, or is ending")
    lent: dict[str, str] = parameters["lent"]  # type: ignore[assignment]
    loaded = sys.modules.get("memprof")
    # This runs between two instructions of the main thread, also those of another entering: what
    # that is loading and opening would be loaded and opened a second time.
    is_loading = getattr(getattr(loaded, "__spec__", None), "_initializing", False)
    if is_loading or any(type(finder).__module__ == __name__ for finder in sys.meta_path):
        raise RuntimeError("another memprof attach is just going in, try again in a moment")
    version = getattr(loaded, "__version__", "of another kind")
    if loaded is not None and version != parameters["version"]:
        raise RuntimeError(
            f"the process has loaded memprof {version}, and this is {parameters['version']}"
        )
    # memprof itself comes first: of the others the program's own are used where it has them.
    own = LentPackages({"memprof": lent.pop("memprof")})
    others = LentPackages(lent)
    sys.meta_path.insert(0, own)
    sys.meta_path.append(others)

    def undo() -> None:
        for finder in (own, others):
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)

    try:
        standby = importlib.import_module("memprof.record.standby")  # as only a job may
        return {"socket": standby.stand_by_attached(undo, parameters.get("page"))}
    except BaseException:
        undo()
        raise


if __name__ == "memprof attach":
    enter(globals()["request"])
