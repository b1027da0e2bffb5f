"""Runs a script that sets no seed, with one: ``seeded.py main.py``."""

import runpy
import sys

import torch

torch.manual_seed(0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
