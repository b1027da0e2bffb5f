"""What a control group leaves, of both versions, in file systems made for the test."""

from __future__ import annotations

from memprof.sources.control_group import ControlGroup
from memprof.sources.host import HostSource


def group(tmp_path, line, files):
    (tmp_path / "proc" / "42").mkdir(parents=True)
    (tmp_path / "proc" / "42" / "cgroup").write_text(line + "\n")
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return ControlGroup(42, str(tmp_path / "proc"), str(tmp_path / "cgroup"))


def test_a_container_of_version_2_has_what_its_limit_leaves(tmp_path):
    files = {
        "job/memory.max": 1000,
        "job/memory.current": 700,
        "job/memory.stat": "anon 500\ninactive_file 150\nactive_file 50",
    }
    assert group(tmp_path, "0::/job", files).free() == 450


def test_the_nearest_limit_counts_also_that_of_a_group_around_it(tmp_path):
    files = {
        "slice/memory.max": 2000,
        "slice/memory.current": 1900,
        "slice/job/memory.max": 1000,
        "slice/job/memory.current": 200,
    }
    assert group(tmp_path, "0::/slice/job", files).free() == 100


def test_a_group_without_a_limit_says_nothing(tmp_path):
    files = {"job/memory.max": "max", "job/memory.current": 700}
    assert group(tmp_path, "0::/job", files).free() is None


def test_version_1_names_its_files_otherwise(tmp_path):
    files = {
        "memory/job/memory.limit_in_bytes": 1000,
        "memory/job/memory.usage_in_bytes": 900,
        "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 30",
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 5,
    }
    assert group(tmp_path, "9:cpu,memory:/job", files).free() == 130


def test_a_container_that_is_told_a_path_of_its_host_looks_at_what_it_sees(tmp_path):
    files = {"memory.max": 1000, "memory.current": 400}
    assert group(tmp_path, "0::/kubepods/pod7", files).free() == 600


def test_a_process_that_is_gone_has_no_group(tmp_path):
    assert ControlGroup(42, str(tmp_path), str(tmp_path)).free() is None


def test_a_reading_of_the_host_has_the_limit_or_none():
    host = HostSource()
    host.open()
    (reading,) = host.read()
    free = reading.values["limit_free"]
    assert free is None or free >= 0
