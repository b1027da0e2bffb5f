"""A real Prometheus for tests: its own checks of metrics and rules, and a server that scrapes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STARTING = 503
_INSTALL = "needs {} on PATH (Debian: apt install prometheus)"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(_INSTALL.format(name))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(folder: Path, target: int, *rules: Path) -> Iterator[PrometheusApi]:
    """A server that scrapes ``target`` five times a second."""
    config = {
        "global": {
            "scrape_interval": "200ms",
            "scrape_timeout": "200ms",
            "evaluation_interval": "1s",
        },
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": "memprof", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    words = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([program("prometheus"), *words], stdout=log, stderr=log) as server,
    ):
        try:
            yield PrometheusApi(port, folder / "log")
        finally:
            server.terminate()


class PrometheusApi:
    def __init__(self, port: int, log: Path) -> None:
        self._port, self._log = port, log

    def query(self, expression: str) -> list[dict]:
        """What an expression is now; raises for one that Prometheus does not understand."""
        words = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{words}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def until(self, expression: str, seconds: float = 60) -> list[dict]:
        """The same, once there is something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                found = self.query(expression)
            except urllib.error.HTTPError as error:
                if error.code != _STARTING:  # it does not understand the expression
                    raise
                found = []
            except OSError:  # it does not listen yet
                found = []
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"{expression} has no value: {self._log.read_text()[-2000:]}")
