"""Pictures are not drawn; their pixels are read, so that they are computed."""

from pathlib import Path


def save_image(tensor, path, **_):
    Path(path).write_bytes(tensor.detach().numpy().tobytes())
