"""Writes random data of the shape of a program's data set into the working folder."""

import pickle
import random
import sys
from pathlib import Path

import numpy as np


def words() -> None:
    """Three texts of a thousand different words, for word_language_model."""
    chance, folder = random.Random(0), Path("data/wikitext-2")
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", 1500), ("valid", 150), ("test", 150)):
        text = (" ".join(f"w{chance.randrange(1000)}" for _ in range(20)) for _ in range(lines))
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")


def waves() -> None:
    """Sines as generate_sine_wave.py of time_sequence_prediction makes them, fewer of them."""
    import torch

    steps = np.arange(300) + np.random.default_rng(0).integers(-80, 80, 20).reshape(20, 1)
    with Path("traindata.pt").open("wb") as file:
        torch.save(np.sin(steps / 1.0 / 20), file)


def tokens() -> None:
    """A text of 65 characters by their numbers, for nanoGPT."""
    folder = Path("data/random")
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for name, length in (("train", 100_000), ("val", 10_000)):
        chance.integers(0, 65, length, dtype=np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


if __name__ == "__main__":
    {"words": words, "waves": waves, "tokens": tokens}[sys.argv[1]]()
