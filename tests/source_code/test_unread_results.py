"""What a function collects beside its result, where a call does not read it."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.unread_results import UnreadResult, unread_result

PROGRAM = """import torch
class Model:
    def forward(self, tokens, past=None, use_cache=True, *, with_maps=True):
        present, maps = [], []
        for layer in self.layers:
            x, cached, map_ = layer(x)
            if use_cache:
                present.append(cached)
            if with_maps:
                maps.append(map_)
        {returned}
def main(model, tokens, options):
    {call}
"""
ONE, TWO = "return x, present", "return x, present, maps"


@pytest.mark.parametrize(
    ("returned", "call", "unread"),
    [
        (ONE, "x, _ = model(tokens)\n    use(x)", UnreadResult("present", "use_cache")),
        (ONE, "return model(tokens)[0]", UnreadResult("present", "use_cache")),
        (ONE, "x, present = model(tokens, None)\n    use(x)", UnreadResult("present", "use_cache")),
        (ONE, "x, _ = model(tokens, **options)\n    use(x)", UnreadResult("present")),
        (ONE, "x, _ = model(tokens, None, True)\n    use(x)", UnreadResult("present")),
        (ONE, "x, _ = model(tokens, use_cache=True)\n    use(x)", UnreadResult("present")),
        (ONE, "out = model(tokens)\n    use(out[0])", UnreadResult("present", "use_cache")),
        (ONE, "out = model(tokens)\n    use(out[0], out[-1])", None),
        (ONE, "out = model(tokens)\n    use(out[0], out)", None),
        (ONE, "x, cached = model(tokens)\n    use(x, cached)", None),
        (ONE, "return model(tokens)", None),
        (ONE, "x, _ = split(model(tokens))\n    use(x)", None),
        (ONE, "x, _ = self.split(self.model(tokens))\n    use(x)", None),
        (ONE, "x, _ = model(torch.cat(tokens))\n    use(x)", UnreadResult("present", "use_cache")),
        (ONE, "model(tokens)", None),
        (ONE, "return model(tokens)[1]", None),
        ("return x", "x, _ = model(tokens)\n    use(x)", None),
        ("return x, len(present)", "x, _ = model(tokens)\n    use(x)", None),
        (TWO, "x, kv, _ = model(tokens)\n    use(x, kv)", UnreadResult("maps", "with_maps")),
        (
            TWO,
            "x, kv, _ = model(tokens, with_maps=True)\n    use(x, kv)",
            UnreadResult("maps"),
        ),
    ],
)
def test_what_a_call_leaves_unread(returned, call, unread, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(returned=returned, call=call))
    program = program_of(str(path))
    assert unread_result(program.at(6), program.at(13)) == unread
