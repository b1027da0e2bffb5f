"""Metrics by Prometheus' own judgement, scraped by a real server; and those of OpenTelemetry."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import memprof
from memprof.errors import MemprofError, MissingError, SettingsError
from memprof.live.live_run import LiveRun
from memprof.live.metrics import METRICS, samples
from memprof.record.options import Options
from memprof.records import Finding, Footer, Interim, Readings
from memprof.runfile.writer import RunWriter
from memprof_cli import main
from tests.exporters.prometheus_server import free_port, program, prometheus
from tests.live.test_live_run import BEGIN, GIB, header, steps
from tests.served_commands import serving
from tests.tracked import PYTHONPATH, FakeEvents, notes, records

pytest.importorskip("prometheus_client", reason="needs pip install 'cuda-memprof[metrics]'")

from memprof.exporters.prometheus import PrometheusServer, exposition

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "dashboards" / "grafana"


def a_run(source="run.json", **more):
    """One with a value of every metric."""
    run = LiveRun(source)
    used = {"used": [14 * GIB], "process_used": [12 * GIB], "others_used": [2 * GIB]}
    host = {"rss": [3 * GIB], "available": [60 * GIB], "limit_free": [20 * GIB]}
    rows = steps(0, 100)
    rows.steps.retries[:] = [2] * 100
    run.add_all(
        [
            header(**more),
            rows,
            Readings("nvml", "cuda:0", [BEGIN], used),
            Readings("host", "host", [BEGIN], host),
            Finding("holders", step=7),
            Finding("holders", step=9),
            Interim(BEGIN + 10, 100, overhead_us=1_500_000),
        ]
    )
    run.devices["cuda:0"].categories = (memprof_owner("parameter", 5 * GIB),)
    return run


def memprof_owner(name, size):
    from memprof.live.live_run import OwnerBytes

    return OwnerBytes(name, size)


def values(text):
    """The lines of an exposition, by metric and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_values_are_those_of_the_run():
    told = values(exposition([a_run(rank=3)]))
    device = '{device="cuda:0",file="run.json",rank="3"}'
    assert told[f"memprof_allocated_bytes{device}"] == 8 * GIB + 99 * (4 << 20)
    assert told[f"memprof_device_memory_bytes{device}"] == 40 * GIB
    assert told[f"memprof_growth_bytes_per_step{device}"] == 4 << 20
    assert told[f"memprof_allocation_retries_total{device}"] == 2
    full = told[f"memprof_time_to_full_steps{device}"]
    assert told[f"memprof_time_to_full_seconds{device}"] == pytest.approx(full * 0.1)
    assert told['memprof_findings_total{file="run.json",finding="holders",rank="3"}'] == 2
    assert told['memprof_steps_total{file="run.json",rank="3"}'] == 100
    assert told['memprof_recording_seconds_total{file="run.json",rank="3"}'] == 1.5
    assert told['memprof_host_limit_free_bytes{file="run.json",rank="3"}'] == 20 * GIB
    named = {re.match(r"\w+", key)[0] for key in told}
    assert named == {metric.name for metric in METRICS}


def test_what_was_not_measured_is_absent():
    run = LiveRun("run.json")
    run.add_all([header(), steps(0, 10, grows=0)])
    told = "\n".join(values(exposition([run])))
    for name in ("time_to_full", "outside_torch", "other_processes", "host_", "recording_seconds"):
        assert name not in told
    assert exposition([LiveRun("empty.json")]) == ""


def test_promtool_finds_nothing_wrong_with_the_metrics():
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=exposition([a_run(), a_run("other.json", rank=1)]),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_finds_nothing_wrong_with_the_alert_rules():
    check = [program("promtool"), "check", "rules", str(GRAFANA / "alerts.yml")]
    done = subprocess.run(check, check=False, capture_output=True, text=True)
    assert "SUCCESS: 5 rules found" in done.stdout, done.stderr
    test = [program("promtool"), "test", "rules", str(GRAFANA / "alerts.test.yml")]
    done = subprocess.run(test, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def board():
    return json.loads((GRAFANA / "memprof.json").read_text())


def test_a_real_server_scrapes_a_file_that_is_followed_and_the_board_and_rules_find_their_data(
    tmp_path,
):
    program("prometheus")
    run = a_run()
    server = PrometheusServer(lambda: [run], 0)
    try:
        with prometheus(tmp_path, server.port, GRAFANA / "alerts.yml") as api:
            (told,) = api.until("memprof_allocated_bytes")
            assert told["metric"]["device"] == "cuda:0"
            assert float(told["value"][1]) == 8 * GIB + 99 * (4 << 20)
            run.add(steps(100, 10))
            api.until(f"memprof_allocated_bytes == {8 * GIB + 109 * (4 << 20)}")
            api.until("rate(memprof_steps_total[5m])")
            for panel in board()["panels"]:
                for target in panel["targets"]:
                    query = target["expr"].replace("$file", ".*").replace("$rank", ".*")
                    assert api.until(query), query
            (alert,) = api.until('ALERTS{alertname="MemprofDeviceFullSoon",alertstate="firing"}')
            assert alert["metric"]["severity"] == "critical"
    finally:
        server.close()


def test_the_board_is_one_that_grafana_reads():
    """By Grafana's schema of a board (kind Dashboard, version 39): what it refuses or ignores."""
    made = board()
    assert made["schemaVersion"] == 39
    assert {"title", "uid", "panels", "templating", "time", "refresh"} <= made.keys()
    assert re.fullmatch(r"[\w-]{1,40}", made["uid"])
    assert "id" not in made  # it is the server's to give
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in made["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {one["name"]: one["type"] for one in made["templating"]["list"]}
    assert variables == {"source": "datasource", "file": "query", "rank": "query"}


def test_boards_and_rules_name_metrics_that_there_are():
    known = {metric.name for metric in METRICS}
    for file in GRAFANA.iterdir():
        named = set(re.findall(r"\bmemprof_\w+", file.read_text()))
        assert named <= known, file


def scrape(port, host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


class Growing(FakeEvents):
    def counters(self):
        self.allocated += 4 << 20
        return super().counters()


def test_a_job_serves_its_metrics_while_it_runs_and_not_after(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    port = free_port()
    with memprof.track(tmp_path / "run.json", sources=[Growing()], prometheus=port) as tracker:
        for _ in range(60):
            tracker.step()
        text = scrape(port)
        told = values(text)
        device = '{device="cuda:0",file="run.json",rank=""}'
        assert told['memprof_steps_total{file="run.json",rank=""}'] >= 55
        assert told[f"memprof_growth_bytes_per_step{device}"] == 4 << 20
        assert told[f"memprof_time_to_full_steps{device}"] > 0
        with pytest.raises(OSError, match=r"refused|No route|unreachable"):
            scrape(port, _other_address())
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def _other_address():
    """An address of this machine that others would use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        address = probe.getsockname()[0]
    return address if not address.startswith("127.0.0.1") else "127.0.0.2"


def test_a_port_that_is_taken_is_a_note_and_the_job_goes_on(tmp_path):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with memprof.track(tmp_path / "run.json", sources=[FakeEvents()], prometheus=port) as one:
            one.step()
    assert f"prometheus: cannot serve metrics on 127.0.0.1:{port}" in notes(tmp_path / "run.json")


def test_without_the_package_it_is_a_note_with_what_to_type(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with memprof.track(tmp_path / "run.json", sources=[FakeEvents()], prometheus=1) as tracker:
        tracker.step()
    assert "need prometheus-client" in notes(tmp_path / "run.json")
    with pytest.raises(MissingError) as told:
        exposition([])
    assert told.value.hint == "pip install 'cuda-memprof[metrics]'"


def test_a_forked_child_lets_go_of_the_port(tmp_path):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    code = """if True:
        import os, sys, time, memprof, torch
        from tests.tracked import FakeEvents
        with memprof.track(sys.argv[1], sources=[FakeEvents()], prometheus=int(sys.argv[2])):
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
        import socket
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", int(sys.argv[2])))
            again.listen()
        os.kill(child, 9)
        print("free")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "run.json"), str(free_port())],
        env=os.environ | {"PYTHONPATH": f"{PYTHONPATH}{os.pathsep}{ROOT}", "MEMPROF": "off"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "free\n", done.stderr


@pytest.mark.parametrize("given", ["nine", -1, 70000, "host:", "0.0.0.0:99999"])
def test_what_is_no_port_is_said_at_once(given):
    with pytest.raises(SettingsError, match="prometheus is"):
        Options(prometheus=given)


def test_a_port_may_come_from_the_environment_and_with_a_host():
    assert Options.of({"MEMPROF_PROMETHEUS": "9464"}).prometheus_address == ("127.0.0.1", 9464)
    assert Options(prometheus="0.0.0.0:9464").prometheus_address == ("0.0.0.0", 9464)
    assert not Options().exports


def test_the_command_follows_a_file_and_serves_it(tmp_path):
    writer = RunWriter(tmp_path / "run.json", header())
    writer.write(steps(0, 100))
    writer.flush()
    port = free_port()
    words = ["export", "--prometheus", str(tmp_path / "run.json"), "--port", str(port)]
    with serving(*words) as line:
        assert f"http://127.0.0.1:{port}/metrics" in line
        assert 'memprof_steps_total{file="run.json",rank=""} 100.0' in scrape(port)
        writer.write(steps(100, 50))
        writer.close(Footer(BEGIN + 1))
        for _ in range(200):
            if 'memprof_steps_total{file="run.json",rank=""} 150.0' in scrape(port):
                break
            signal.sigtimedwait([], 0.1)
        assert 'memprof_run_ended{file="run.json",rank=""} 1.0' in scrape(port)


def test_the_metrics_of_all_ranks_are_printed_once(tmp_path, capsys):
    for rank in range(3):
        writer = RunWriter(tmp_path / f"run.rank{rank}.json", header(rank=rank, world_size=3))
        writer.write(steps(0, 40, held=(rank + 1) * GIB))
        writer.close()
    with pytest.raises(SystemExit) as ended:
        main(["export", "--prometheus", "--once", str(tmp_path)])
    assert ended.value.code == 0
    told = values(capsys.readouterr().out)
    found = [key for key in told if key.startswith("memprof_allocated_bytes")]
    assert len(found) == 3


def test_a_port_that_is_taken_ends_the_command_with_a_hint():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MemprofError, match="cannot serve metrics") as told:
            PrometheusServer(list, taken.getsockname()[1])
    assert told.value.hint == "choose another port"


# -- OpenTelemetry -----------------------------------------------------------------------------


def read(reader):
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: (metric.unit, [(dict(p.attributes), p.value) for p in metric.data.data_points])
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_has_the_same_values():
    sdk = pytest.importorskip(
        "opentelemetry.sdk.metrics", reason="needs pip install 'cuda-memprof[otel]'"
    )
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from memprof.exporters.opentelemetry import OpenTelemetryInstruments

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    run = a_run(rank=3)
    instruments = OpenTelemetryInstruments(lambda: [run], provider)
    told = read(reader)
    expected = [one for one in samples([run]) if one.metric.name == "memprof_allocated_bytes"]
    labels = {"device": "cuda:0", "file": "run.json", "rank": "3"}
    assert told["memprof.allocated"] == ("By", [(labels, expected[0].value)])
    assert told["memprof.steps"][1] == [({"file": "run.json", "rank": "3"}, 100.0)]
    assert told["memprof.growth_bytes_per_step"][0] == "By"
    assert told["memprof.time_to_full"][0] == "s"
    assert len(told) == len(METRICS)
    instruments.close()
    assert read(reader) == {}
    provider.shutdown()


def test_a_job_tells_opentelemetry_until_its_recording_ends(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    sdk = pytest.importorskip(
        "opentelemetry.sdk.metrics", reason="needs pip install 'cuda-memprof[otel]'"
    )
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    with memprof.track(
        tmp_path / "run.json", sources=[Growing()], opentelemetry=provider
    ) as tracker:
        for _ in range(30):
            tracker.step()
        assert read(reader)["memprof.steps"][1][0][1] >= 25
    assert read(reader) == {}
    provider.shutdown()


def test_metrics_that_fail_end_and_the_recording_goes_on(tmp_path, monkeypatch, caplog):
    pytest.importorskip("torch", reason="there is nothing to record without torch")

    def fail(*_):
        raise RuntimeError("broken")

    with memprof.track(tmp_path / "run.json", sources=[Growing()], prometheus=0) as tracker:
        monkeypatch.setattr(LiveRun, "add", fail)
        for _ in range(20):
            tracker.step()
    assert "metrics have ended, the recording goes on" in caplog.text
    assert notes(tmp_path / "run.json").count("recording ended") == 0
    rows = [one for one in records(tmp_path / "run.json") if one["kind"] == "steps"]
    assert rows[-1]["steps"]["last"][-1] == 19


def test_in_a_job_few_rows_are_looked_at():
    run = LiveRun(most_rows=128)
    run.add(header())
    for block in range(40):
        run.add(steps(block * 100, 100))
    device = run.devices["cuda:0"]
    assert len(device.rows) <= 128
    assert device.rows[-1].last == 3999
