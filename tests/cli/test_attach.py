"""`memprof attach` and `memprof detach`: what is asked of a process, what is said, how they end."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from memprof.attach.listing import ListedProcess, Listing
from memprof.errors import MissingError
from memprof_cli import attach, detach

PROCESS = ListedProcess(
    pid=4711,
    command=("python", "-c", "import torch\nwhile True:\n    pass"),
    started_s=0.0,
    python_version="3.11",
    torch_version="2.13.0+cu126",
    rank=3,
    device_bytes=61 << 30,
    status="standby",
)


@pytest.fixture
def asked(monkeypatch) -> list:
    """What `begin` and `end` were given; they succeed."""
    calls: list = []

    def begin(pid, request, **options):
        calls.append((pid, request, {n: v for n, v in options.items() if n != "waits"}))
        return request["path"]

    def end(pid, **options):
        calls.append((pid, {n: v for n, v in options.items() if n != "waits"}))
        return "/jobs/run.json"

    monkeypatch.setattr(attach, "begin", begin)
    monkeypatch.setattr(detach, "end", end)
    return calls


def said(command, *words: str) -> str:
    done = CliRunner().invoke(command, words, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.output


def listed(monkeypatch, *processes: ListedProcess, unread: int = 0, has_driver: bool = True) -> str:
    listing = Listing(processes, unread, has_driver)
    monkeypatch.setattr(attach, "list_processes", lambda: listing)
    return said(attach.command)


def test_a_process_is_recorded_into_a_file_of_its_own_in_this_folder(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = said(attach.command, "4711")
    path = str(tmp_path / "memprof-run.pid4711.json")
    nothing = {"duration_s": None, "budget": None, "allowance_s": None}
    assert asked == [(4711, {"path": path, **nothing}, {"inject": False, "timeout_s": 30.0})]
    assert "recording process 4711 into memprof-run.pid4711.json, until you type" in output
    assert "memprof detach 4711" in output


def test_options_are_handed_on(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "4711 -o a/run.json --duration 1h30m --inject --timeout 2m --budget 0.1 --allowance 2"
    output = said(attach.command, *words.split())
    (pid, request, options) = asked[0]
    assert (pid, options) == (4711, {"inject": True, "timeout_s": 120.0})
    assert request == {
        "path": str(tmp_path / "a" / "run.json"),
        "duration_s": 5400.0,
        "budget": 0.1,
        "allowance_s": 2.0,
    }
    assert "for 90 min" in output


def test_the_result_is_there_as_json(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = json.loads(said(attach.command, "4711", "--duration", "90s", "--json"))
    path = str(tmp_path / "memprof-run.pid4711.json")
    assert document == {"pid": 4711, "path": path, "duration_s": 90.0}
    assert json.loads(said(detach.command, "4711", "--json")) == {
        "pid": 4711,
        "path": "/jobs/run.json",
    }


def test_detaching_names_the_file_and_what_reads_it(asked):
    output = said(detach.command, "4711", "--stay")
    assert output == "recorded /jobs/run.json; next: memprof report /jobs/run.json\n"
    assert asked == [(4711, {"stay": True, "timeout_s": 30.0})]


def test_a_refusal_is_handed_on(monkeypatch):
    def refuse(*_, **__):
        raise MissingError("there is no process 4711", "memprof attach")

    monkeypatch.setattr(attach, "begin", refuse)
    done = CliRunner().invoke(attach.command, ["4711"], standalone_mode=False)
    assert isinstance(done.exception, MissingError)


@pytest.mark.parametrize("text", ["soon", "5x", "-3", ""])
def test_what_is_no_duration_is_refused(text):
    done = CliRunner().invoke(attach.command, ["4711", "--duration", text], standalone_mode=False)
    assert "is not a duration" in str(done.exception)


def test_processes_are_listed_with_what_the_driver_and_memprof_know(monkeypatch):
    heading, row = listed(monkeypatch, PROCESS).splitlines()
    assert heading.split()[:2] == ["PID", "rank"]
    assert "4711  3 " in row
    assert "61 GiB" in row
    assert "2.13.0+cu126 on 3.11  standby" in row
    assert row.endswith("python -c import torch while True: pass")


def test_a_file_that_a_process_is_recorded_into_is_named_as_seen_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one = ListedProcess(**{**_fields(PROCESS), "status": str(tmp_path / "run.json")})
    assert " run.json " in listed(monkeypatch, one)


def test_what_is_not_known_is_said(monkeypatch):
    one = ListedProcess(**{**_fields(PROCESS), "device_bytes": None, "rank": None, "status": ""})
    output = listed(monkeypatch, one, unread=2, has_driver=False)
    assert "4711  - " in output
    assert "no NVIDIA driver answers" in output
    assert "2 more processes may not be looked into" in output
    assert "has loaded torch" in listed(monkeypatch)


def test_the_list_is_there_as_json(monkeypatch):
    monkeypatch.setattr(attach, "list_processes", lambda: Listing((PROCESS,), 1, True))
    document = json.loads(said(attach.command, "--json"))
    assert document["processes"][0]["device_bytes"] == 61 << 30
    assert document["unread"] == 1


def _fields(process: ListedProcess) -> dict:
    return {name: getattr(process, name) for name in ListedProcess.__slots__}
