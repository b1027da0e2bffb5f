"""The engines that ``--on`` names: a Dask cluster, a Ray cluster, or processes here."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from memprof.errors import MemprofError, MissingError, SettingsError

__all__ = ["engine"]

_ADDRESS = re.compile(r"(?P<engine>[a-z]+)://(?P<place>\S+)")
_LOCAL = re.compile(r"local(?::(?P<count>\d+))?")
_HINT = (
    "dask://HOST:PORT, ray://HOST:PORT, ray://auto; here dask://local:4, ray://local, processes://4"
)


@contextmanager
def engine(address: str) -> Iterator[Executor]:
    """The engine at ``dask://host:8786``, ``ray://auto`` or the like, until the context ends.

    Raises:
        SettingsError: no such engine.
        MissingError: its package is not installed.
        MemprofError: nothing answers there.
    """
    match = _ADDRESS.fullmatch(address)
    kinds: dict[str, Callable[[str], AbstractContextManager[Executor]]] = {
        "dask": _dask,
        "ray": _ray,
        "processes": _processes,
    }
    if match is None or match["engine"] not in kinds:
        raise SettingsError(f"no engine is called {address!r}", _HINT)
    with kinds[match["engine"]](match["place"]) as executor:
        yield executor


def _local_count(place: str) -> int | None:
    """How many workers are wanted on this machine; None for an address elsewhere."""
    match = _LOCAL.fullmatch(place)
    return None if match is None else int(match["count"] or 0) or os.cpu_count() or 1


@contextmanager
def _processes(place: str) -> Iterator[Executor]:
    if not place.isdecimal() or not int(place):
        raise SettingsError(f"no number of processes: {place!r}", "--on processes://4")
    # Not forked: this process has threads, and what they hold would stay held.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(int(place), mp_context=spawning) as pool:
        yield pool


@contextmanager
def _dask(place: str) -> Iterator[Executor]:
    try:
        import distributed  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise _missing("dask", error) from error
    count = _local_count(place)
    try:
        if count is None:
            client: Any = distributed.Client(f"tcp://{place}", set_as_default=False)
        else:
            cluster = distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address=None
            )
            client = distributed.Client(cluster, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _silent(f"dask://{place}", error) from error
    try:
        # Its results are not to be taken for those of an earlier report of the same files.
        with client.get_executor(pure=False) as executor:
            yield executor
    finally:
        client.close()
        if count is not None:
            cluster.close()


@contextmanager
def _ray(place: str) -> Iterator[Executor]:
    hook = sys.excepthook
    try:
        import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise _missing("ray", error) from error
    finally:
        sys.excepthook = hook  # Ray's own comes with the import, for all that comes after
    count = _local_count(place)
    # Ray puts a handler of its own in its place, for all that comes after.
    handler = signal.getsignal(signal.SIGTERM)
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if count is not None:
            ray.init(num_cpus=count, include_dashboard=False, **quiet)
        elif place == "auto":
            ray.init("auto", **quiet)
        else:
            ray.init(f"ray://{place}", **quiet)
        yield _RayExecutor(ray)
    except (ConnectionError, OSError, ValueError) as error:
        if ray.is_initialized():
            raise  # it is no error of Ray's
        raise _silent(f"ray://{place}", error) from error
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


class _RayExecutor(Executor):
    """A Ray cluster as an executor: every call is a task of one core."""

    def __init__(self, ray: Any) -> None:
        self._call = ray.remote(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._call.remote(fn, args, kwargs).future()
        return future


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _missing(name: str, error: ImportError) -> MissingError:
    return MissingError(
        f"--on {name}:// needs a package that is not here: {error}",
        f"pip install 'cuda-memprof[{name}]'",
    )


def _silent(address: str, error: Exception) -> MemprofError:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return MemprofError(f"nothing answers at {address}: {line}", _HINT)
