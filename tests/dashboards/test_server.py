"""The page that is served: in a real browser, following a file; and whom the server answers."""

from __future__ import annotations

import http.client
import json
import signal
import time
import urllib.request

import pytest

from memprof.errors import MemprofError
from memprof.live.watched_runs import WatchedRuns
from memprof.records import Finding, Footer
from memprof.runfile.writer import RunWriter
from memprof_dashboards.server import PageServer
from tests.live.test_live_run import BEGIN, header, steps
from tests.served_commands import serving


def made_by(texts):
    """Makes pages of given texts, the last one again and again."""
    left = list(texts)

    def make(path):
        text = left.pop(0) if len(left) > 1 else left[0]
        if text.startswith("error: "):
            return text
        path.write_text(f"<html><body>{text}</body></html>")
        return ""

    return make


@pytest.fixture
def running(tmp_path):
    """Starts servers of a run of 100 steps that fills its device, and ends them."""
    writer = RunWriter(tmp_path / "run.json", header(argv=["train.py"]))
    writer.write(steps(0, 100))
    writer.write(Finding("holders", step=7, bytes=1 << 20, count=2))
    writer.flush()
    servers = []

    def start(*texts, **options):
        folder = tmp_path / f"pages{len(servers)}"
        folder.mkdir()
        runs = WatchedRuns(tmp_path / "run.json")
        make = made_by(texts or ["page one"])
        servers.append(PageServer(runs, make, folder, every_s=0.2, **options))
        servers[-1].start()
        return servers[-1]

    start.writer = writer
    yield start
    for server in servers:
        server.close()
    writer.close()


def get(server, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.headers)
    finally:
        connection.close()


def until(holds, seconds=40):
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def events(server, count, path="/events"):
    """So many messages of the strip."""
    told = []
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=40) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                told.append(json.loads(line[6:]))
                if len(told) == count:
                    return told
    return told


def test_the_page_is_made_anew_as_the_file_grows(running):
    server = running("page one", "page two")
    _, text, _ = until(lambda: (a := get(server)) and "page one" in a[1] and a)
    assert 'data-page="1"' in text
    running.writer.write(steps(100, 5))
    running.writer.flush()
    until(lambda: 'data-page="2"' in get(server)[1])
    assert "page two" in get(server)[1]
    assert text.index('id="live"') < text.index("</body>")


def test_without_more_in_the_file_no_page_is_made(running):
    server = running("page one", "page two")
    until(lambda: "page one" in get(server)[1])
    time.sleep(2.5)
    assert "page one" in get(server)[1]


def test_the_strip_says_what_is_known_by_now(running):
    server = running()
    until(lambda: "page one" in get(server)[1])
    (now,) = events(server, 1)
    assert now["state"] == "running"
    assert now["step"] == "step 99, 100 ms each"
    assert now["memory"] == "cuda:0: 8.39 GiB allocated, peak 9.39 GiB of 40 GiB"
    assert now["full"].startswith("cuda:0 runs out of memory at about step")
    assert now["finding"].startswith("2 tensors, 1 MiB, outlived their step")
    assert now["page"] == 1


def test_the_strip_goes_on_with_the_file(running):
    server = running()
    until(lambda: "page one" in get(server)[1])
    running.writer.close(Footer(BEGIN + 1, 100, status="ValueError: no"))
    until(lambda: events(server, 1)[0]["state"] == "ValueError: no")
    assert events(server, 1)[0]["full"] == ""


def test_a_page_that_cannot_be_made_is_said(running):
    server = running("error: <b>no such thing</b>")
    until(lambda: "no such thing" in get(server)[1])
    status, text, _ = get(server)
    assert status == 200
    assert "&lt;b&gt;no such thing" in text
    assert 'data-page="0"' in text


def test_only_names_of_this_machine_are_answered(running):
    """Else a page on the web that gives its name this machine's address could read it."""
    server = running()
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert get(server, Host=f"{host}:{server.port}")[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "192.168.1.5"):
        assert get(server, Host=host)[0] == 403
        assert get(server, "/events", Host=host)[0] == 403


def test_bound_elsewhere_the_address_must_have_its_token(running):
    server = running(host="0.0.0.0")
    assert len(server.token) >= 20
    assert server.url == f"http://0.0.0.0:{server.port}/?token={server.token}"
    for path in ("/", "/?token=", "/?token=x", "/events", f"/?Token={server.token}"):
        status, text, _ = get(server, path)
        assert (status, text) == (403, "the address lacks its token\n")
    assert get(server, f"/?token={server.token}")[0] == 200
    assert get(server, f"/?token={server.token}", Host="gpu7:80")[0] == 200
    assert events(server, 1, f"/events?token={server.token}")


def test_on_this_machine_no_token_is_needed(running):
    server = running()
    assert server.token == ""
    assert server.url == f"http://127.0.0.1:{server.port}/"


def test_nothing_else_is_there_and_nothing_is_kept_or_embedded(running):
    server = running()
    assert get(server, "/etc/passwd")[0] == 404
    assert get(server, "/../run.json")[0] == 404
    headers = get(server)[2]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_port_that_is_taken_is_said(running, tmp_path):
    server = running()
    with pytest.raises(MemprofError, match="cannot serve on") as told:
        PageServer(WatchedRuns(tmp_path / "run.json"), made_by(["x"]), tmp_path, port=server.port)
    assert "--port" in told.value.hint


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def online(browser):
    """The browser with the network on; what it asks of others is a complaint still."""
    on = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.send("Network.emulateNetworkConditions", offline=False, **on)
    yield browser
    browser.send("Page.navigate", url="about:blank")
    off = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.send("Network.emulateNetworkConditions", offline=True, **off)


def shows(browser, script):
    return until(
        lambda: browser.run(
            f"(() => {{ try {{ return {script}; }} catch (e) {{ return ''; }} }})()"
        ),
        90,
    )


@pytest.mark.browser
def test_the_command_serves_the_page_of_report_and_the_browser_follows_it(tmp_path, online):
    writer = RunWriter(tmp_path / "run.json", header(argv=["train.py"]))
    writer.write(steps(0, 100))
    writer.flush()
    with serving("serve", str(tmp_path / "run.json"), "--port", "0", "--every", "1") as line:
        url = line.split(": ", 1)[1].split()[0]
        online.send("Page.navigate", url=url)
        shows(online, "Number(document.getElementById('live').dataset.page) >= 1")
        shows(online, "document.documentElement.dataset.drawn === 'yes'")
        heading = "document.querySelector('h1').textContent"
        assert online.run(heading).startswith("cuda:0 runs out of memory at about step ")
        strip = "document.querySelector('[data-part=\"{}\"]').textContent"
        assert shows(online, strip.format("step")).startswith("step 99")
        assert "runs out of memory" in shows(online, strip.format("full"))
        bars = "document.querySelectorAll('#steps .chart *').length"
        assert shows(online, bars) > 10
        shown = online.run("document.getElementById('live').dataset.page")
        writer.write(steps(100, 60))
        writer.flush()
        shows(online, strip.format("step") + ".startsWith('step 159')")
        shows(online, f"Number(document.getElementById('live').dataset.page) > {shown}")
        shows(online, "document.documentElement.dataset.drawn === 'yes'")
        assert "9.62 GiB" in online.run("document.querySelector('.tiles').textContent")
        writer.close(Footer(BEGIN + 1, 160))
        shows(online, strip.format("state") + " === 'ended'")
    asked = f"asked the network for {url}"
    others = [one for one in online.complaints if not one.startswith(asked)]
    assert others == []


@pytest.mark.browser
def test_the_ranks_of_a_folder_have_their_page(tmp_path, online):
    for rank in range(3):
        writer = RunWriter(tmp_path / f"run.rank{rank}.json", header(rank=rank, world_size=3))
        writer.write(steps(0, 50))
        writer.close(Footer(BEGIN + 1, 50))
    with serving("serve", str(tmp_path), "--port", "0", until=signal.SIGTERM) as line:
        online.send("Page.navigate", url=line.split(": ", 1)[1].split()[0])
        shows(online, "Number(document.getElementById('live').dataset.page) >= 1")
        shows(online, "document.documentElement.dataset.drawn === 'yes'")
        assert "3" in shows(online, "document.querySelector('main').textContent")
        state = "document.querySelector('[data-part=\"state\"]').textContent"
        assert "of 3: ended" in shows(online, f"{state} !== '…' && {state}")
