"""A dispatch mode that ends within a compiled call, which puts back that modes are asked."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memprof.sources.cpu.dispatch_mode import Watch, pop_left  # noqa: E402
from memprof.sources.cpu.inference_blocks import is_asked  # noqa: E402


def _passes(_mode, func, _types, args=(), kwargs=None):
    return func(*args, **kwargs or {})


@pytest.fixture(scope="module")
def compiler_is_loaded():
    """torch.compile patches modules when it is first used, and leaves it so."""
    torch.compile(torch.nn.Linear(1, 1), backend="eager")(torch.zeros(1, 1))
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler_is_loaded")
def test_operators_run_after_a_mode_ended_within_a_compiled_call():
    watch = Watch(_passes)

    @torch._dynamo.disable
    def end() -> None:
        watch.pop()
        pop_left()

    @torch.compile(backend="eager")
    def step(x):
        y = x + 1
        end()
        return y * 2

    try:
        watch.push()
        assert step(torch.zeros(2)).tolist() == [2, 2]
        pop_left()
        assert not is_asked()
        assert torch._C._len_torch_dispatch_stack() == 0
        assert torch.ones(2).tolist() == [1, 1]  # it raised within torch
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(torch._C.DispatchKey.Python, False)
        torch._C._dispatch_tls_set_dispatch_key_included(
            torch._C.DispatchKey.PythonTLSSnapshot, False
        )
        torch._dynamo.reset()
