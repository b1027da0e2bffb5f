"""unwindowed-cache: a cache keeps all keys and values of a model with a window."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
import torch

from tests.rules.recorded import findings_of, names

LIBRARY = """\
import torch


class DynamicLayer:
    def __init__(self):
        self.keys = torch.zeros(0, 1024)

    def update(self, keys):
        self.keys = torch.cat([self.keys, keys])
        return self.keys


class DynamicCache:
    def __init__(self, config=None):
        self.layers = [DynamicLayer()]


class MistralConfig:
    def __init__(self, sliding_window=None):
        self.sliding_window = sliding_window


class Qwen2Config(MistralConfig):
    def __init__(self, sliding_window=None, use_sliding_window=False):
        self.sliding_window = sliding_window if use_sliding_window else None


class Model:
    def __init__(self, config):
        self.config = config

    def __call__(self, x, past_key_values):
        return past_key_values.layers[0].update(x)
"""
PROGRAM = """\
if False:
    from transformers import DynamicCache, MistralConfig


class Scorer:
    def __init__(self):
        self.model = Model({config}({window}))
        self.cache = DynamicCache({given})

    def push(self, x):
        return self.model(x, past_key_values=self.cache)[-16:].sum().item()


scorer = Scorer()


def step(number):
    return scorer.push(torch.rand(8, 1024))
"""
FOLDER = Path(tempfile.gettempdir(), f"memprof-programs-{os.getuid()}")


def made(window="sliding_window=16", given="", config="MistralConfig"):
    """The library's classes, and a program that uses them, each in a file of its own."""
    names_of = {"torch": torch}
    for folder, text in (
        (FOLDER / "site-packages" / "transformers", LIBRARY),
        (FOLDER, PROGRAM.format(window=window, given=given, config=config)),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"cache_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(text)
        own.replace(path)
        exec(compile(text, str(path), "exec"), names_of)
    return names_of["step"]


def fires():
    """A window of 16 positions, and a cache that is told nothing of it."""
    return made()


def looks_alike():
    """The model attends to everything."""
    return made(window="")


def test_the_cache_is_to_be_given_the_configuration(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unwindowed-cache", "bound_cache")
    assert first.code == "self.cache = DynamicCache()"
    assert first.typed == "DynamicCache(config=self.model.config)"
    assert found.bytes_per_step == 8 * 1024 * 4


@pytest.mark.parametrize(
    ("window", "given", "config", "is_told"),
    [
        ("", "", "MistralConfig", False),
        ("sliding_window=None", "", "MistralConfig", False),
        ("sliding_window=16", "config=self.model.config", "MistralConfig", False),
        ("sliding_window=16", "", "Qwen2Config", False),
        ("sliding_window=16, use_sliding_window=True", "", "Qwen2Config", True),
    ],
)
def test_what_has_no_window_or_knows_of_it(window, given, config, is_told, tmp_path):
    found = names(lambda: made(window, given, config), tmp_path / "run.json")
    assert ("unwindowed-cache" in found) is is_told
