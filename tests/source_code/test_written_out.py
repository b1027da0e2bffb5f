"""Functions of torch that a program writes out: which one, and the lines of its steps."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.written_out import written_out

SCALED = "F.silu(scale * x) / scale"
NORM = """m = x.mean(-1, keepdim=True)
v = x.var(-1, keepdim=True)
n = (x - m) / torch.sqrt(v + 1e-5)
return self.gain * n + self.bias"""
IMAGES = """d = x - x.mean(dim=(2, 3), keepdim=True)
return d * torch.rsqrt(d.pow(2).mean((2, 3), keepdim=True) + 1e-5)"""


def function_at_last_line(tmp_path, code):
    body = "".join(f"    {line}\n" for line in code.splitlines())
    path = tmp_path / "train.py"
    path.write_text("def forward(self, x, y):\n" + body)
    program = program_of(str(path))
    return written_out(program.at(1 + len(code.splitlines())))


@pytest.mark.parametrize(
    ("code", "instead", "lines"),
    [
        ("return x * torch.sigmoid(x)", "F.silu(x)", {2}),
        ("return self.sigmoid(x) * x", "F.silu(x)", {2}),
        ("s = x.sigmoid()\nreturn x * s", "F.silu(x)", {2, 3}),
        ("h = self.fc(x)\nreturn h * torch.sigmoid(h)", "F.silu(x)", {3}),
        ("return x * torch.sigmoid(1.702 * x)", "F.silu(scale * x) / scale", {2}),
        ("h = x + y\nreturn h * torch.sigmoid(h)", "F.silu(x)", {3}),
        ("h = x * y\nreturn h * torch.sigmoid(h)", "F.silu(x)", {3}),
        ("h = x + y\nreturn h * (1 + torch.erf(h / 2**0.5)) / 2", "F.gelu(x)", {3}),
        ("return x * torch.tanh(F.softplus(x))", "F.mish(x)", {2}),
        ("return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2)))", "F.gelu(x)", {2}),
        ("c = 0.5 * (1 + torch.erf(x / 2**0.5))\nreturn c * x", "F.gelu(x)", {2, 3}),
        (
            "u = 0.8 * (x + 0.04 * x**3)\nt = torch.tanh(u)\nreturn 0.5 * x * (1 + t)",
            'F.gelu(x, approximate="tanh")',
            {2, 3, 4},
        ),
        (
            "e = torch.exp(x - x.max(-1, keepdim=True).values)\nreturn e / e.sum(-1, keepdim=True)",
            "torch.softmax(x, dim)",
            {2, 3},
        ),
        ("g = torch.sigmoid(torch.mul(x, y))\nreturn torch.mul(x, g)", SCALED, {2, 3}),
        ("return x.mul(x.sigmoid())", "F.silu(x)", {2}),
        ("return torch.log(torch.exp(x).add(1))", "F.softplus(x)", {2}),
        ("return torch.log(1 + torch.exp(x))", "F.softplus(x)", {2}),
        ("return x.exp().log1p()", "F.softplus(x)", {2}),
        (
            NORM,
            "F.layer_norm(x, x.shape[-1:])",
            {2, 3, 4, 5},
        ),
        (
            "h = x + y\nm = h.mean(-1, keepdim=True)\nreturn (h - m) / h.std(-1, keepdim=True)",
            "F.layer_norm(x, x.shape[-1:])",
            {3, 4},
        ),
        (
            IMAGES,
            "F.instance_norm",
            {2, 3},
        ),
        ("c = x.div(2**0.5).erf()\nc = c.add(1).mul(0.5)\nreturn x * c", "F.gelu(x)", {2, 3, 4}),
        ("x = self.fc(x)\ns = torch.sigmoid(x)\nx = x * s", "F.silu(x)", {3, 4}),
        (
            "x = x - x.mean(-1, keepdim=True)\nreturn x / x.std(-1, keepdim=True)",
            "F.layer_norm(x, x.shape[-1:])",
            {2, 3},
        ),
    ],
)
def test_a_function_that_is_written_out_is_recognised(code, instead, lines, tmp_path):
    function = function_at_last_line(tmp_path, code)
    assert function.instead == instead
    assert function.lines == lines


@pytest.mark.parametrize(
    "code",
    [
        "return x * torch.sigmoid(y)",  # a gate
        "return x * y.sigmoid()",
        "return torch.mul(x, torch.sigmoid(y))",
        "return torch.mul(x, torch.sigmoid(x), out=y)",
        "return F.silu(x)",
        "return x * torch.tanh(x)",
        "return x * (1 + torch.tanh(y))",
        "e = torch.exp(x)\nreturn e / y.sum(-1)",
        "return (x - x.mean()) / (x.std() + 1e-8)",  # of all values: torch has no function
        "return (x - self.mean) / self.std",
        "return (x - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True)",
        "return torch.log(x + 1e-8)",
        "x = x - x.mean(-1, keepdim=True)\nreturn x / 2",
        "s = torch.sigmoid(x)\nx = x + y\nreturn x * s",  # of another x
        "s = x\nfor _ in y:\n    s = torch.sigmoid(s)\nreturn x * s",
    ],
)
def test_what_only_looks_like_one_is_none(code, tmp_path):
    assert function_at_last_line(tmp_path, code) is None
