"""`memprof doctor`: facts from stand-ins of torch, and the command on this machine."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from memprof.record.doctor import Fact, diagnose
from memprof_cli.doctor import command


def torch_of(version="2.13.0", *, cuda="12.8", devices=1, backend="native", hip=None):
    """As much of torch as the diagnosis asks for."""
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda, hip=hip),
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: cuda is not None)),
        cuda=SimpleNamespace(device_count=lambda: devices, get_allocator_backend=lambda: backend),
    )


def fact(name: str, torch, environment=None, folder=".") -> Fact:
    facts = diagnose(environment or {}, folder, lambda: torch).facts
    return next(f for f in facts if f.name == name)


def missing():
    raise ImportError("No module named 'torch'")


def test_a_machine_with_a_device_can_record_cuda():
    assert set(diagnose({}, ".", torch_of).recordable) >= {"cpu", "cuda", "host"}
    assert fact("CUDA", torch_of()).found == "CUDA 12.8, 1 device(s)"


def test_without_torch_the_host_is_left_and_the_install_line_is_given():
    diagnosis = diagnose({}, ".", missing)
    torch = next(f for f in diagnosis.facts if f.name == "torch")
    assert "cpu" not in diagnosis.recordable
    assert torch.ok is False
    assert torch.hint


@pytest.mark.parametrize(
    ("name", "torch", "environment", "found"),
    [
        ("CUDA", torch_of(cuda=None), {}, "this torch was built without CUDA"),
        ("CUDA", torch_of(devices=0), {}, "CUDA 12.8, but torch sees no device"),
        ("torch", torch_of("1.13.1"), {}, "1.13.1"),
        ("allocator", torch_of(backend="cudaMallocAsync"), {}, "cudaMallocAsync: counters only"),
        ("allocator", torch_of(), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "caching is off"),
    ],
)
def test_what_is_not_well_is_said(name, torch, environment, found):
    said = fact(name, torch, environment)
    assert said.ok is False
    assert said.found.startswith(found)


def test_allocator_settings_are_shown_as_they_are():
    said = fact("allocator settings", torch_of(), {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"})
    assert (said.ok, said.found) == (None, "PYTORCH_ALLOC_CONF=max_split_size_mb:128")


def test_a_newer_torch_is_neither_right_nor_wrong():
    assert fact("torch", torch_of("3.0.0")).ok is None


def test_the_command_prints_every_fact_and_a_summary():
    pytest.importorskip("torch")
    done = CliRunner().invoke(command, [], standalone_mode=False)
    assert done.return_value == 0
    assert "memprof can record here: CPU tensors" in done.output
    assert all(f.name in done.output for f in diagnose().facts)


def test_the_json_holds_the_same_facts():
    done = CliRunner().invoke(command, ["--json"], standalone_mode=False)
    document = json.loads(done.output)
    assert [f["name"] for f in document["facts"]] == [f.name for f in diagnose().facts]
    assert "host" in document["recordable"]
