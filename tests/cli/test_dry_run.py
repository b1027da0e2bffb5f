"""`memprof dry-run` as far as it needs no CUDA: its list, its errors."""

from __future__ import annotations

import json

import pytest

from memprof.dry_run import launch
from memprof.dry_run.build import Torch
from memprof.dry_run.cards import listed
from memprof.errors import MissingError, SettingsError


def run_main(*words: str) -> int:
    from memprof_cli import main

    with pytest.raises(SystemExit) as ended:
        main([*words])
    return ended.value.code


def test_the_cards_are_listed_with_what_is_assumed(capsys):
    assert run_main("dry-run", "--list-gpus") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in listed())
    (row,) = (line for line in printed.splitlines() if line.startswith("h100 "))
    assert row.split()[:3] == ["h100", "79.2", "GiB"]
    assert "(assumed)" in row


def test_the_list_for_machines_has_the_source_of_each_figure(capsys):
    assert run_main("dry-run", "--list-gpus", "--json") == 0
    cards = json.loads(capsys.readouterr().out)
    assert cards["t4"]["total_bytes"] == listed()["t4"].total_bytes
    assert "deviceQuery" in cards["t4"]["sources"]["total_bytes"]


@pytest.mark.parametrize("words", [["train.py"], ["--gpu", "t4"]])
def test_what_is_missing_is_said(words, capsys):
    assert run_main("dry-run", *words) == 2
    assert "is missing" in capsys.readouterr().err


def test_an_unknown_card_is_refused_before_anything_is_built(capsys):
    assert run_main("dry-run", "--gpu", "voodoo2", "train.py") == 2
    assert "no card is known as 'voodoo2'" in capsys.readouterr().err


def test_a_torch_without_cuda_is_one_error_with_a_hint(capsys, monkeypatch):
    def missing():
        raise MissingError("this torch was built without CUDA", "pip install torch")

    monkeypatch.setattr(launch, "find_torch", missing)
    assert run_main("dry-run", "--gpu", "t4", "train.py") == 1
    told = capsys.readouterr().err
    assert "error: this torch was built without CUDA" in told
    assert "hint:  pip install torch" in told


def test_the_library_is_put_before_what_is_loaded_already(tmp_path, monkeypatch):
    library = tmp_path / "dry-run" / "key" / "libcuda.so.1"
    monkeypatch.setattr(launch, "find_torch", lambda: Torch(tmp_path, "2.11", ()))
    monkeypatch.setattr(launch, "build", lambda _: library)
    before = {"LD_PRELOAD": "libjemalloc.so", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/root"}
    variables = launch.environment(listed()["t4"], 2, before)
    assert variables["LD_PRELOAD"] == f"{library} libjemalloc.so"
    assert variables["LD_LIBRARY_PATH"] == str(library.parent)
    assert "CUDA_VISIBLE_DEVICES" not in variables
    assert variables["HOME"] == "/root"
    assert launch.environment(listed()["t4"], 2, variables) == variables


@pytest.mark.parametrize("number", [0, 17])
def test_no_card_and_too_many_are_refused(number):
    with pytest.raises(SettingsError):
        launch.environment(listed()["t4"], number, {})
