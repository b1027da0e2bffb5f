"""The modes of torch that a line ran in, by the source around it and the frames of its stack."""

from __future__ import annotations

from memprof.source_code.torch_modes import under_autocast, without_gradients
from memprof.trace import Frame

EVALUATION = """\
import torch
@torch.no_grad()
def score(net, x):
    return net(x)
def inside(net, x):
    with torch.inference_mode(), open(x):
        return net(x)
@torch.no_grad()
def train(net, x):
    with torch.enable_grad():
        return net(x)
def plain(net, x):
    return net(x)
"""


def test_a_line_under_no_grad_is_known_by_its_source_or_by_its_decorator_s_frame(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(EVALUATION)
    lines = {"score": 4, "inside": 7, "train": 11, "plain": 13}
    off = {name for name, line in lines.items()
           if without_gradients([Frame(name, str(path), line)])}  # fmt: skip
    assert off == {"score", "inside"}
    library = Frame("generate", "/venv/site-packages/library/generation.py", 9)
    wrapper = Frame("decorate_context", "/venv/site-packages/torch/utils/_contextlib.py", 120)
    assert without_gradients([library, wrapper, Frame("plain", str(path), 13)])
    assert not without_gradients([library, Frame("plain", str(path), 13)])
    closure = Frame("Closure.closure", "/venv/site-packages/library/loop.py", 131)
    step = Frame("SGD.step", "/venv/site-packages/torch/optim/sgd.py", 116)
    assert not without_gradients([closure, wrapper, Frame("plain", str(path), 13), step])
    decorated = Frame("LBFGS.step", "/venv/site-packages/torch/optim/lbfgs.py", 332)
    inside = Frame("_single_tensor_adam", "/venv/site-packages/torch/optim/adam.py", 544)
    assert not without_gradients([Frame("plain", str(path), 13), wrapper, decorated, wrapper])
    assert without_gradients([inside, decorated, wrapper])


AUTOCAST = """\
import torch
from torch.cuda import amp
from torch.amp.autocast_mode import autocast as cast
def by_class(net, x):
    with torch.autocast("cuda"):
        return net(x)
def by_module(net, x):
    with amp.autocast():
        return net(x)
@cast("cuda")
def decorated(net, x):
    return net(x)
def by_object(net, x, fabric):
    with fabric.autocast():
        return net(x)
def off(net, x):
    with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):
        return net(x)
def plain(net, x):
    return net(x)  # autocast
"""


def test_a_line_under_autocast_is_known_by_its_source_or_by_torch_s_frames(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(AUTOCAST)
    lines = {
        "by_class": 6,
        "by_module": 9,
        "decorated": 12,
        "by_object": 15,
        "off": 18,
        "plain": 20,
    }
    on = {name for name, line in lines.items() if under_autocast([Frame(name, str(path), line)])}
    assert on == {"by_class", "by_module", "decorated", "by_object"}
    plain = Frame("plain", str(path), 20)
    inside = Frame("decorate_autocast", "/venv/site-packages/torch/amp/autocast_mode.py", 44)
    cast = Frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "", 0)
    assert under_autocast([plain, inside])
    assert under_autocast([cast, plain])
