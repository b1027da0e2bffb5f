"""NVML through the real pynvml, on a driver library that the test compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.sources.nvml import NvmlSource, cuda_uuids

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or sys.platform != "linux",
    reason="needs gcc on Linux (Debian: apt install gcc)",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    """A folder with a libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("stub_nvml.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return folder


def answer(driver: Path, code: str, **environment: str):
    """What the code leaves in ``found``, from a process that finds this driver."""
    program = (
        f"import json, os\nfrom memprof.sources.nvml import *\n{code}\nprint(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPEN = """
os.environ.setdefault("STUB_NVML_PID", str(os.getpid()))
source = NvmlSource(lambda: {"cuda:0": "22222222-bbbb", "cuda:1": "GPU-11111111-aaaa"})
source.open()
"""


def test_devices_are_matched_by_uuid_and_not_by_their_order(driver):
    found = answer(driver, OPEN + "found = {r.device: r.values['used'] for r in source.read()}")
    assert found == {"cuda:0": 20, "cuda:1": 300}


LISTED = """
import gc
lists = []
class Uuids(dict):
    def items(self):
        for one in super().items():
            lists.append(gc.get_objects())
            yield one
os.environ.setdefault("STUB_NVML_PID", str(os.getpid()))
source = NvmlSource(lambda: Uuids({"cuda:0": "22222222-bbbb", "cuda:1": "GPU-11111111-aaaa"}))
source.open()
"""


def test_a_search_that_lists_all_objects_meanwhile_ends_no_reading(driver):
    found = answer(driver, LISTED + "found = [r.device for r in source.read()]")
    assert found == ["cuda:0", "cuda:1"]


def test_every_value_of_a_card_that_says_everything(driver):
    found = answer(driver, OPEN + "found = source.read()[1].values")
    assert found == {
        "used": 300,
        "free": 700,
        "total": 1000,
        "process_used": 222,
        "others_used": 111,
        "used by other 1": 111,
        "utilization_percent": 77,
        "temperature_c": 60,
        "power_w": 123.5,
    }


def test_what_a_card_cannot_say_is_none(driver):
    found = answer(driver, OPEN + "found = source.read()[0].values")
    assert {name for name, value in found.items() if value is None} == {
        "process_used",
        "others_used",
        "utilization_percent",
        "power_w",
    }


def test_a_process_that_the_driver_knows_by_another_number_is_none(driver):
    found = answer(driver, OPEN + "found = source.read()[1].values", STUB_NVML_PID="4")
    assert found["process_used"] is None
    assert found["others_used"] is None  # one of them is this process
    assert not any(name.startswith("used by") for name in found)
    assert found["used"] == 300


def test_a_driver_that_dies_in_the_middle_leaves_none_and_raises_nothing(driver):
    code = OPEN + "found = [[r.values for r in source.read()] for _ in range(3)]; source.close()"
    found = answer(driver, code, STUB_NVML_DIES_AFTER="2")
    assert found[0][1]["used"] == 300
    assert set(found[2][1].values()) == {None}


def test_a_device_that_the_driver_does_not_know_is_left_out(driver):
    code = (
        "source = NvmlSource(lambda: {'cuda:0': '33333333'}); source.open(); found = source.read()"
    )
    assert answer(driver, code) == []


def test_the_processes_on_a_card_are_named_and_reading_goes_on(driver):
    code = (
        OPEN
        + """
os.environ["STUB_NVML_PID"] = str(os.getpid())
uses = processes_on("cuda:1", lambda: {"cuda:1": "11111111-aaaa"})
found = [[u.name, u.bytes, u.own] for u in uses] + [source.read()[1].values["used"]]
"""
    )
    others = [["/usr/bin/other", 111, False], ["", None, False]]
    assert answer(driver, code) == [*others, ["", 222, True], 300]


def test_so_many_processes_get_a_series_of_their_own_and_the_sum_has_all(driver):
    found = answer(driver, OPEN + "found = source.read()[1].values", STUB_NVML_OTHERS="30")
    named = {name: value for name, value in found.items() if name.startswith("used by")}
    assert len(named) == 16
    assert named["used by other 1"] == 111
    assert named["used by a process 5000030"] == 30
    assert found["others_used"] == 111 + sum(range(1, 31))


VISIBLE = """
import sys, types
uuids = ["11111111-aaaa", "22222222-bbbb"]
listed = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
def uuid(i):  # as CUDA finds it; of a slice some versions tell the card's
    name = listed[i]
    return uuids[int(name)] if name.isdecimal() else name[4:] if name[:4] == "GPU-" else uuids[0]
cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: len(listed),
    get_allocator_backend=lambda: "native",
    memory_reserved=lambda i: 1,
    get_device_properties=lambda i: types.SimpleNamespace(uuid=uuid(i)),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
os.environ["STUB_NVML_PID"] = str(os.getpid())
source = NvmlSource()
source.open()
found = {r.device: [r.values["total"], r.values["used"]] for r in source.read()}
"""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", {"cuda:0": [1000, 300], "cuda:1": [1000, 20]}),
        ("1,0", {"cuda:0": [1000, 20], "cuda:1": [1000, 300]}),
        ("1", {"cuda:0": [1000, 20]}),
        ("GPU-22222222-bbbb", {"cuda:0": [1000, 20]}),
        ("GPU-22222222-bbbb,GPU-11111111-aaaa", {"cuda:0": [1000, 20], "cuda:1": [1000, 300]}),
        ("MIG-33333333-cccc", {"cuda:0": [125, 50]}),
    ],
)
def test_devices_that_are_made_visible_are_the_ones_that_are_read(driver, visible, expected):
    assert answer(driver, VISIBLE, CUDA_VISIBLE_DEVICES=visible) == expected


SAMPLED = """
import sys, threading, time, types
threads = set()
def asked(value):
    threads.add(threading.current_thread().name)
    return value
cuda = types.SimpleNamespace(
    is_initialized=lambda: asked(True),
    device_count=lambda: asked(2),
    get_allocator_backend=lambda: asked("native"),
    memory_reserved=lambda i: asked(1),
    get_device_properties=lambda i: asked(types.SimpleNamespace(
        uuid=["11111111-aaaa", "22222222-bbbb"][i])),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
source = NvmlSource()
source.open()
devices = []
def sample():
    until = time.monotonic() + 300
    while not devices and time.monotonic() < until:
        devices.extend(r.device for r in source.read())
        time.sleep(0.005)
sampler = threading.Thread(target=sample, name="sampler")
sampler.start()
while sampler.is_alive():
    pass
found = [sorted(threads), devices]
"""


def test_the_thread_that_samples_never_asks_torch(driver):
    assert answer(driver, SAMPLED) == [["MainThread"], ["cuda:0", "cuda:1"]]


def test_a_device_that_ran_out_of_memory_is_known_without_its_allocator(driver):
    code = (
        VISIBLE
        + """
def refuse(i): raise RuntimeError("the allocator's lock is held")
source.close()
cuda.memory_reserved = refuse
found = [[p.pid for p in processes_on(f"cuda:{i}")] for i in range(3)]
found = [len(found[0]) > 0, found[2]]
"""
    )
    assert answer(driver, code, CUDA_VISIBLE_DEVICES="0,1") == [True, []]


def test_a_slice_has_its_own_memory_and_the_heat_and_power_of_its_card(driver):
    code = VISIBLE + "found = source.read()[0].values"
    assert answer(driver, code, CUDA_VISIBLE_DEVICES="MIG-33333333-cccc") == {
        "used": 50,
        "free": 75,
        "total": 125,
        "process_used": 44,
        "others_used": 0,
        "utilization_percent": None,
        "temperature_c": 60,
        "power_w": 123.5,
    }


def test_a_dead_driver_lists_no_processes_and_no_memory(driver):
    code = """
found = [[u.pid for u in processes_on("cuda:0", lambda: {"cuda:0": "11111111-aaaa"})]]
found += [c.used_bytes for c in cards()]
"""
    assert answer(driver, code, STUB_NVML_DIES_AFTER="-1") == [[], None, None]


def test_a_card_whose_processes_cannot_be_listed_has_none(driver):
    code = "found = processes_on('cuda:0', lambda: {'cuda:0': '22222222-bbbb'})"
    assert answer(driver, code) == []
    assert answer(driver, "found = processes_on('cuda:0')") == []


def test_all_cards_are_listed_for_the_doctor(driver):
    code = "found = [driver_version(), [[c.index, c.name, c.total_bytes] for c in cards()]]"
    assert answer(driver, code) == ["550.1", [[0, "Stub One", 1000], [1, "Stub Two", 1000]]]


def test_without_a_driver_there_is_one_clear_error(tmp_path):
    code = """
found = []
try:
    NvmlSource().open()
except Exception as error:
    found = [type(error).__name__, error.message]
"""
    kind, message = answer(tmp_path, code)
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    assert kind == "MissingError"
    assert "no NVIDIA driver answers" in message


def test_a_closed_source_reads_nothing_and_closes_twice(driver):
    code = OPEN + "source.close(); source.close(); found = len(source.read())"
    assert answer(driver, code) == 0


def test_no_device_is_read_before_torch_has_initialised_cuda():
    assert NvmlSource().read() == ()
    if "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized():
        assert cuda_uuids() == {}


def test_what_every_process_holds_is_summed_over_all_cards(driver):
    """One whose bytes are not told has none that are known, whatever it has elsewhere."""
    found = answer(driver, "found = memory_by_process()", STUB_NVML_PID="77")
    assert found == {"1": 111, "3": None, "77": 222}
