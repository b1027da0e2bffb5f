"""Models of a library that return the results of their layers, or keys and values."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROWS, WIDTH, DEPTH = 256, 64, 8
LIBRARIES = Path(__file__).with_name("site-packages")


def library(name, path):
    spec = importlib.util.spec_from_file_location(name, LIBRARIES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stack_of_layers():
    return library("layered", "layered/__init__.py").Stack(WIDTH, DEPTH).eval()


def configured(config):
    return library("layered", "layered/__init__.py").Configured(WIDTH, DEPTH, config).eval()


def decoder():
    cache = library("cache_utils", "transformers/cache_utils.py").Cache
    return library("decoder", "layered/decoder.py").Decoder(WIDTH, DEPTH, cache).eval()
