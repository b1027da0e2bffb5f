"""The page in a real browser, from disk, with the network off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memprof.loading import load
from memprof.report.summary import summarize
from memprof.testing import TraceBuilder, save_snapshot, snapshot, step_columns, write_run
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.examination import examine
from memprof_dashboards import RunReport, write
from tests.dashboards.browser import Browser
from tests.dashboards.recordings import HOSTILE, MIB, START_US, STEPS, recorded, training
from tests.dashboards.test_findings import leak

pytestmark = pytest.mark.browser

CHART = "document.querySelector('#memory .chart')"


def press(browser: Browser, figure: str, text: str) -> None:
    """Click the button of a figure that bears a text."""
    browser.run(
        f"[...document.querySelectorAll('#{figure} button')].find(b => b.textContent === '{text}').click()"
    )


def names(browser: Browser) -> list[str]:
    """The layers of the memory chart."""
    found: list[str] = browser.run(f"{CHART}.data.filter(t => t.stackgroup).map(t => t.name)")
    return found


def place(browser: Browser, x: float, y: float, chart: str = CHART) -> tuple[float, float]:
    """Where a point of a chart is in the window."""
    left, top = browser.run(
        f"(() => {{ const c = {chart}, b = c.getBoundingClientRect(), f = c._fullLayout;"
        f"return [b.x + f.xaxis._offset + f.xaxis.d2p({x}), b.y + f.yaxis._offset + f.yaxis.d2p({y})] }})()"
    )
    return left, top


def wait_for(browser: Browser, condition: str, seconds: float = 300) -> None:
    """Until a JavaScript expression is true."""
    end = time.monotonic() + seconds
    while not browser.run(condition):
        assert time.monotonic() < end, f"{condition} did not come true"
        time.sleep(0.05)


TIP = "document.getElementById('tip').innerText"


def scroll_to(browser: Browser, figure: str) -> None:
    """Bring a figure into the window, and wait until it is drawn there."""
    browser.run(
        f"(document.getElementById('{figure}').scrollIntoView(),"
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0)))))"
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small recording."""
    folder = tmp_path_factory.mktemp("plain")
    return write([recorded(folder)], folder / "page.html")


@pytest.fixture(scope="module")
def with_finding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small recording, with a leak."""
    folder = tmp_path_factory.mktemp("with_finding")
    examination = examine(recorded(folder))
    report = RunReport(examination, summarize(examination, [leak()]), [leak()])
    return write([report], folder / "page.html")


def test_it_opens_from_disk_with_every_chart_and_no_complaint(browser: Browser, plain: Path):
    browser.open(plain, only_look=True)
    drawn = browser.run(
        "[...document.querySelectorAll('.figure .chart')].map(c => c.data.length > 0)"
    )
    assert drawn == [True] * 5
    assert browser.run("document.documentElement.dataset.drawn") == "yes"
    assert browser.complaints == []


def test_the_marks_on_the_time_axis_are_where_the_steps_were(
    browser: Browser, plain: Path, tmp_path: Path
):
    run = recorded(tmp_path)
    browser.look(plain)
    marks = browser.run(f"{CHART}.layout.shapes.filter(s => s.name).map(s => [s.name, s.x0, s.x1])")
    ends_ms = ((run.devices[0].steps.end_us - START_US) / 1000).tolist()
    assert marks == [
        [f"step {n}", pytest.approx(at), pytest.approx(at)] for n, at in enumerate(ends_ms)
    ]
    assert browser.run(f"{CHART}.layout.xaxis.title.text") == "time (ms)"


def test_on_the_event_axis_they_are_at_the_last_event_of_each_step(
    browser: Browser, plain: Path, tmp_path: Path
):
    run = recorded(tmp_path)
    browser.open(plain)
    press(browser, "memory", "Event")
    trace = run.devices[0].windows[0]
    labels = [trace.label(int(i)).step for i in trace.events.label]
    marks = browser.run(f"{CHART}.layout.shapes.filter(s => s.name).map(s => s.x0)")
    assert marks == [max(i for i, s in enumerate(labels) if s == n) + 1 for n in range(STEPS)]


def test_bytes_are_written_as_on_the_command_line(browser: Browser, plain: Path):
    # Ties in the last digit that is shown, which binary units have many of, and their neighbours.
    sizes = [2**20 // 8 * n for n in (*range(1, 90), 730, 2660, 2676)] + [999, 1000, 1023 * 1024]
    browser.look(plain)
    assert browser.run(f"{sizes}.map(formatBytes)") == [format_bytes(size) for size in sizes]


def test_switching_groups_redraws_the_same_bytes(browser: Browser, plain: Path):
    browser.open(plain)
    highest = f"{CHART}.data.filter(t => t.stackgroup).map(t => Math.max(...t.y))"
    assert names(browser) == ["parameter", "gradient", "activation", "temporary"]
    assert browser.run(highest) == [4 * MIB, 4 * MIB, 6 * MIB, 2 * MIB]
    press(browser, "memory", "Module")
    assert sorted(names(browser)) == ["(no module)", "GPT.head"]
    press(browser, "memory", "Site")
    assert set(names(browser)) == {
        "job/model.py:31 in forward",
        "job/train.py:7 in main",
        "(no stack recorded)",
    }
    press(browser, "memory", "Category")
    assert browser.run(highest) == [4 * MIB, 4 * MIB, 6 * MIB, 2 * MIB]
    assert browser.complaints == []


def test_a_layer_is_hidden_by_its_name_in_the_legend(browser: Browser, plain: Path):
    browser.open(plain)
    browser.run(
        "[...document.querySelectorAll('#memory .legend button')].find(b => b.textContent.startsWith('activation')).click()"
    )
    hidden = browser.run(f"{CHART}.data.filter(t => t.visible === false).map(t => t.name)")
    assert hidden == ["activation"]


def test_the_pointer_shows_bytes_step_and_site_and_a_click_the_stack(browser: Browser, plain: Path):
    browser.open(plain)
    scroll_to(browser, "memory")
    x, y = place(browser, 0.12, 4 * MIB)
    browser.pointer(x - 2, y)
    wait_for(browser, f"{TIP} !== ''")
    browser.pointer(x, y, click=True)
    wait_for(browser, "document.querySelector('#memory .stack-panel').innerText.includes(':')")
    shown = browser.run(TIP)
    for said in (
        "allocated",
        "10 MiB",
        "reserved",
        "in step 0",
        "alloc 6 MiB at job/model.py:31 in forward",
    ):
        assert said in shown
    stack = browser.run("document.querySelector('#memory .stack-panel').innerText")
    assert "job/model.py:31" in stack


def test_between_windows_the_pointer_tells_the_counters_of_the_step(
    browser: Browser, tmp_path: Path
):
    first = TraceBuilder().alloc(MIB, "a").build()
    second = TraceBuilder().wait(9000).alloc(3 * MIB, "b").build()
    steps = step_columns(
        start_us=[START_US, START_US + 100, START_US + 9000],
        end_us=[START_US + 50, START_US + 8000, START_US + 9100],
        allocated=[MIB, 7 * MIB, 3 * MIB],
        peak_allocated=[MIB, 8 * MIB, 3 * MIB],
        window=[0, -1, 1],
    )
    run = load(write_run(tmp_path / "run.json", first, second, steps=steps))
    browser.open(write([run], tmp_path / "page.html"))
    assert browser.run("[0.02, 4, 9.02].map(countedStepAt)") == [-1, 1, -1]
    assert browser.run("stepTip(1)[1].slice(0, 2).map(row => row.value)") == ["8 MiB", "7 MiB"]
    notes = browser.run(f"{CHART}.layout.annotations.map(a => a.text)")
    assert "peak 8 MiB" in notes


def test_zooming_redraws_memory_and_readings_over_the_same_range(browser: Browser, plain: Path):
    browser.open(plain)
    scroll_to(browser, "memory")
    left, y = place(browser, 1, 2 * MIB)
    right, _ = place(browser, 2, 2 * MIB)
    browser.drag((left, y), (right, y))
    ranges = "['memory', 'readings'].map(id => document.querySelector(`#${id} .chart`).layout.xaxis.range)"
    wait_for(browser, f"({ranges})[0][1] < 3")
    memory, readings = browser.run(ranges)
    assert memory == readings == [pytest.approx(1, abs=0.05), pytest.approx(2, abs=0.05)]
    press(browser, "memory", "Whole range")
    assert browser.run(f"{CHART}.layout.xaxis.range")[0] == 0


def test_many_events_are_thinned_without_losing_the_peak_and_refined_on_zoom(
    browser: Browser, tmp_path: Path
):
    builder = TraceBuilder()
    for number in range(4000):
        builder.alloc((50 if number == 2222 else 1 + number % 7) * MIB, "a").free("a")
    browser.open(
        write([load(write_run(tmp_path / "run.json", builder.build()))], tmp_path / "page.html")
    )
    assert browser.run("memory.shown.length") < 2200
    assert browser.run(f"Math.max(...{CHART}.data[0].y)") == 50 * MIB
    wide = browser.run("memory.shown.length / (memoryAxis(device().memory).x.at(-1))")
    browser.run("zoomTo([30, 40])")
    assert browser.run("memory.shown.length / 10") > 3 * wide


def test_the_runs_and_devices_of_a_page_are_switched(browser: Browser, tmp_path: Path):
    first = recorded(tmp_path, name="one.json")
    small = TraceBuilder(device="cuda:0").alloc(MIB, "a").build()
    large = TraceBuilder(device="cuda:1").alloc(9 * MIB, "b").build()
    second = load(write_run(tmp_path / "two.json", small, large))
    browser.open(write([first, second], tmp_path / "page.html"))
    browser.run(
        "(() => { const s = document.getElementById('run'); s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run("[page.run, page.device]") == [1, 1]  # the device with the higher peak
    visible = "[...document.querySelectorAll('.tile .value')].filter(e => e.offsetParent).map(e => e.textContent)[0]"
    assert browser.run(visible) == "9 MiB"
    browser.run(
        "(() => { const s = document.querySelector('label:not([hidden]) select.device'); s.selectedIndex = 0; s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run(visible) == "1 MiB"
    assert browser.complaints == []


def test_the_icicle_switches_tree_and_moment_and_looks_into_a_box(browser: Browser, plain: Path):
    browser.open(plain)
    chart = "document.querySelector('#owners .chart')"
    assert browser.run(f"{chart}.data[0].labels[0]") == "everything"
    assert browser.run(f"{chart}.data[0].values[0]") == 14 * MIB
    press(browser, "owners", "By stack")
    assert "forward · model.py:31" in browser.run(f"{chart}.data[0].labels")
    press(browser, "owners", "At the end")
    assert browser.run(f"{chart}.data[0].values[0]") == 4 * MIB
    assert browser.complaints == []


def test_the_map_tells_the_block_under_the_pointer(browser: Browser, plain: Path):
    browser.open(plain)
    scroll_to(browser, "segments")
    x, y = place(browser, 1000, 0.5, "document.querySelector('#segments .chart')")
    browser.pointer(x, y)
    wait_for(browser, f"{TIP} !== ''")
    shown = browser.run(TIP)
    assert "block at 0x7f0000000000" in shown
    assert "parameter" in shown
    assert "4 MiB" in shown


def test_where_no_segment_is_known_there_is_no_map(browser: Browser, tmp_path: Path):
    trace = TraceBuilder(device="cpu").alloc(4 * MIB, "a").alloc(MIB, "b").free("b").build()
    run = load(write_run(tmp_path / "run.json", trace))
    browser.open(write([run], tmp_path / "page.html"))
    wait_for(browser, "!document.getElementById('memory').hidden")
    assert browser.run("document.getElementById('segments').hidden")
    assert "Map of the allocator" not in browser.run("document.querySelector('.links').innerText")
    assert browser.complaints == []


def test_hostile_names_are_text_in_every_chart_and_tooltip(browser: Browser, tmp_path: Path):
    trace = training(Frame(HOSTILE, f"/home/{HOSTILE}/m.py", 3), HOSTILE)
    examination = examine(recorded(tmp_path, trace))
    report = RunReport(examination, summarize(examination), [leak(HOSTILE)])
    browser.open(write([report], tmp_path / "page.html", title=HOSTILE))
    for split in ("Module", "Site"):
        press(browser, "memory", split)
    press(browser, "owners", "By stack")
    browser.run("tip({clientX: 9, clientY: 9}, ...memoryTip(3))")
    browser.run("showStack(section('memory').below, 'x', device().memory.stack[3])")
    assert browser.run("document.querySelectorAll('img, [onerror]').length") == 0
    assert "<img src=x" in browser.run("document.body.innerText")
    assert browser.complaints == []


def test_findings_draw_their_growth(browser: Browser, with_finding: Path):
    browser.open(with_finding)
    assert browser.run("Math.max(...document.querySelector('.spark').data[0].y)") == 9 * 24 * MIB


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2200])
def test_it_fits_any_width_in_light_and_dark(
    browser: Browser, with_finding: Path, width: int, scheme: str
):
    browser.resize(width, 800)
    browser.prefer(scheme)
    browser.open(with_finding)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []


def test_text_has_the_contrast_that_accessibility_asks_for(browser: Browser, plain: Path):
    browser.look(plain)
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for name in ("--text", "--quiet", "--accent", "--danger", "--good", "--warn"):
            ratio = browser.run(CONTRAST.replace("NAME", name))
            assert ratio >= 4.5, f"{name} in {scheme}: {ratio:.2f}"


CONTRAST = """(() => {
  const light = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const [a, b] = [light(variable("NAME")), light(variable("--panel"))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
})()"""


def test_a_snapshot_without_events_or_devices_opens_too(browser: Browser, tmp_path: Path):
    whole = snapshot(TraceBuilder().existing(MIB, "weights").alloc(512, "a").build(start=False))
    whole["device_traces"] = [[]]
    still = load(save_snapshot(tmp_path / "still.pickle", whole))
    empty = tmp_path / "empty.json"
    empty.write_text('[\n{"kind":"header","schema":[1,0],"created_us":1}\n]\n')
    browser.open(write([still, load(empty)], tmp_path / "page.html"))
    assert "no course over time" in browser.run("document.getElementById('memory').innerText")
    browser.run(
        "(() => { const s = document.getElementById('run'); s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run("[...document.querySelectorAll('.figure')].every(f => f.hidden)")
    assert browser.complaints == []


@pytest.mark.parametrize(
    "name",
    [
        "gpt-medium-1024-training",
        "dataparallel-oom-expandable",
        "lm-segments-only",
        "llm-offload-no-timestamps",
    ],
)
def test_real_snapshots_open_without_complaint(
    browser: Browser, shared: Path, tmp_path: Path, name: str
):
    browser.open(write([load(shared / "snapshots" / f"{name}.pickle")], tmp_path / "page.html"))
    assert browser.run("document.documentElement.dataset.drawn") == "yes"
    assert browser.complaints == []
