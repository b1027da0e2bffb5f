"""Rules for graphs that are kept, and what holds for all advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.records import Holder
from memprof.reference_chain import Link
from memprof.rules.finding import Growth, Kind
from memprof.rules.fixes import FIXES
from tests.rules.bench import LOOP, Bench, fixes

DOCS = Path(__file__).resolve().parents[2] / "docs" / "fixes"


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_every_fix_has_a_page_with_the_four_parts():
    assert {page.stem for page in DOCS.glob("*.md")} - {"README"} == set(FIXES)
    for fix in FIXES:
        text = (DOCS / f"{fix}.md").read_text()
        for part in ("## The pattern", "## Why it costs memory", "## The fix", "## When not to"):
            assert part in text
        assert text.count("```python") == 2


def test_a_list_that_keeps_graphs_is_told_to_detach(bench):
    bench.write(LOOP)
    through_graph = bench.holder(
        "append",
        ("item", "0", 9),
        ("autograd_node", "MeanBackward0", -1),
        ("saved_tensor", "a", -1),
    )
    first, *rest = bench.advise("loss = net", through_graph)
    assert (first.fix, first.line, first.code) == ("detach", 3, "kept.append(loss)")
    assert "+    kept.append(loss.detach())" in first.patch
    assert "item" in fixes(rest)


GRAPH = (("item", "0", 9), ("autograd_node", "MeanBackward0", -1), ("saved_tensor", "a", -1))


@pytest.mark.parametrize(
    ("itself", "order", "saves"),
    [
        (0.25, ["detach", "clear_container", "item"], 3072),
        (0.75, ["clear_container", "cpu_offload", "detach"], 1024),
    ],
)
def test_detaching_saves_what_the_graph_keeps_and_not_what_the_list_does(
    bench, itself, order, saves
):
    bench.write("def step(net, kept):\n    kept.append(net())\n")
    holders = [bench.holder("append", *GRAPH), bench.holder("append", GRAPH[0])]
    remedies = bench.advise("append", *holders, growth=Growth(kept_itself=itself))
    assert fixes(remedies) == order
    detach = next(remedy for remedy in remedies if remedy.fix == "detach")
    assert detach.saves_bytes == saves
    assert ("cutting that off leaves the tensors, 75 % of the bytes" in detach.why) == (
        itself > 0.5
    )


def test_detaching_what_is_kept_after_its_backward_pass_is_said_to_free_no_tensor(bench):
    bench.write(LOOP)
    remedies = bench.advise(
        "loss = net", bench.holder("append", ("item", "0", 9)), category="activation"
    )
    detach = next(remedy for remedy in remedies if remedy.fix == "detach")
    assert detach.saves_bytes == 0
    assert "host memory" in detach.why
    assert [one.fix for one in remedies[:2]] == ["clear_container", "cpu_offload"]
    assert remedies[0].saves_bytes == 4096


def test_a_kept_tensor_of_one_number_is_told_to_be_the_number(bench):
    bench.write(LOOP)
    remedies = bench.advise(
        "loss = net", bench.holder("append", ("item", "0", 9)), category="activation", nbytes=512
    )
    assert remedies[0].fix == "item"
    assert "+    kept.append(loss.item())" in remedies[0].patch


def test_a_running_sum_on_the_host_is_said_to_keep_graph_nodes(bench):
    bench.write("def step(s, loss):\n    loss.backward()\n    s.total = s.total + loss\n")
    holder = bench.holder(
        "s.total", ("attribute", "total", -1), ("autograd_node", "AddBackward0", -1)
    )
    first, second = bench.advise("s.total", holder, kind=Kind.HOST_GROWTH)[:2]
    assert fixes([first, second]) == ["item", "detach"]
    assert "host memory" in first.why
    assert "+    s.total = s.total + loss.item()" in first.patch


THROUGH_GRAPH = (("autograd_node", "TanhBackward0", -1), ("saved_tensor", "result", -1))

CARRIED = """\
def train(cell, data):
    hidden = torch.zeros(8, 8)
    for x in data:
        hidden = cell(x, hidden)
        loss = hidden.mean()
        loss.backward(retain_graph=True)
"""


def test_a_state_that_carries_its_graph_is_detached_between_steps_and_the_graph_kept(bench):
    bench.write(CARRIED)
    holder = bench.holder("loss = hidden", ("local", "loss", -1), *THROUGH_GRAPH)
    first, *rest = bench.advise("hidden = cell", holder)
    assert (first.fix, first.line) == ("detach", 4)
    assert "+        hidden = cell(x, hidden.detach())" in first.patch
    assert "no_retain_graph" not in fixes(rest)


def test_within_a_step_no_patch_cuts_a_state_off(bench):
    bench.write(CARRIED.replace("loss.backward(retain_graph=True)", "kept = loss"))
    holder = bench.holder("loss = hidden", ("local", "loss", -1), *THROUGH_GRAPH)
    first = bench.advise("hidden = cell", holder)[0]
    assert (first.fix, first.patch) == ("detach", "")


def test_a_state_that_the_function_goes_on_to_use_is_not_cut_off_where_it_is_made(bench):
    text = "class Net:\n    def step(self, x):\n        self.out = self.net(x)\n"
    for rest in ("        return x\n", "        self.out.sum().backward()\n"):
        bench.write(text + rest)
        holder = bench.holder("self.out =", ("attribute", "out", -1), *THROUGH_GRAPH)
        patches = [r.patch for r in bench.advise("self.out =", holder) if r.fix == "detach"]
        assert bool(patches[0]) == rest.endswith("return x\n")


@pytest.mark.parametrize(
    ("read", "is_patched"),
    [
        ("return loss_of(net.out, x)", False),
        ("return net.out.detach().mean()", True),
        ("net.out = None", True),
    ],
)
def test_a_state_from_which_another_function_learns_is_not_cut_off(bench, read, is_patched):
    made = "class Net:\n    def step(self, x):\n        self.out = self.net(x)\n"
    bench.write(f"{made}def train(net, x):\n    net.step(x)\n    {read}\n")
    holder = bench.holder("self.out =", ("attribute", "out", -1), *THROUGH_GRAPH)
    patches = [r.patch for r in bench.advise("self.out =", holder) if r.fix == "detach"]
    assert bool(patches[0]) is is_patched


def test_one_of_several_results_is_not_detached_together_with_the_others(bench):
    bench.write("def step(s, x):\n    out, s.memory = s.net(x)\n    return out\n")
    holder = bench.holder("s.memory", ("attribute", "memory", -1), *THROUGH_GRAPH)
    first = bench.advise("s.memory", holder)[0]
    assert (first.fix, first.patch) == ("detach", "")


KEPT_GRAPHS = """\
def train(net, data, kept):
    for x in data:
        loss = net(x).mean()
        loss.backward(retain_graph=True)
        kept.append(loss)
"""


def test_retaining_is_named_where_a_container_keeps_the_graph_of_each_step(bench):
    bench.write(KEPT_GRAPHS)
    holder = bench.holder("kept.append", ("item", "3", 9), *THROUGH_GRAPH)
    remedies = bench.advise("loss = net", holder)
    assert fixes(remedies)[:2] == ["detach", "no_retain_graph"]
    assert "+        loss.backward()" in remedies[1].patch


def test_retaining_is_not_what_keeps_copies_of_weights(bench):
    bench.write(KEPT_GRAPHS.replace("kept.append(loss)", "kept.append(copy_of(net))"))
    holder = bench.holder("kept.append", ("item", "3", 9), ("item", "weight", 4))
    assert "no_retain_graph" not in fixes(bench.advise("copy_of", holder))


def test_only_the_last_pass_through_a_graph_is_told_not_to_retain_it(bench):
    second = "loss.backward(retain_graph=True)\n        (2 * loss).backward()"
    bench.write(KEPT_GRAPHS.replace("loss.backward(retain_graph=True)", second))
    holder = bench.holder("kept.append", ("item", "3", 9), *THROUGH_GRAPH)
    patches = {r.fix: r.patch for r in bench.advise("loss = net", holder)}
    assert not patches.get("no_retain_graph")


def test_without_the_source_there_is_advice_without_patches(bench):
    bench.write(LOOP)
    holder = bench.holder("append", ("item", "0", 9))
    bench.file.rename(bench.folder / "gone.py")
    remedies = bench.advise("append", holder, category="activation")
    assert remedies
    assert not any(remedy.patch for remedy in remedies)


def test_what_a_call_returned_is_detached_where_it_was_seen_to_be_a_tensor(bench):
    bench.write("def step(net, kept):\n    kept.append(net())\n")
    (detach, *_) = bench.advise("append", bench.holder("append", *GRAPH))
    assert "+    kept.append(net().detach())" in detach.patch
    inside = (GRAPH[0], ("attribute", "logits", -1), *GRAPH[1:])
    remedies = bench.advise("append", bench.holder("append", *inside))
    assert not any(remedy.patch for remedy in remedies)


def test_a_notebooks_cell_is_advised_by_the_line_that_the_job_read(bench):
    bench.write("kept.append(net(x))\n")
    holder = bench.holder("append", *GRAPH)
    bench.file.unlink()
    first = bench.advise("append", holder)[0]
    assert (first.fix, first.line, first.patch) == ("detach", 1, "")
    assert first.why.startswith("`kept` keeps `net(x)` with the graph that made it")


@pytest.mark.parametrize(
    "code", ["for x in data: kept.append(x)", "kept.append(", "a = 1; kept.append(b)", ""]
)
def test_a_line_that_is_no_whole_statement_is_not_advised_on_without_its_file(bench, code):
    bench.write(f"{code}\n")
    holder = Holder("item", str(bench.file), 1, code, [Link("item", "0", length=9)])
    bench.file.unlink()
    bench.lines = ["append"]
    assert fixes(bench.advise("append", holder)) == ["del_ref"]


def test_a_tensor_that_is_detached_where_it_is_kept_is_not_to_be_detached(bench):
    bench.write(LOOP.replace("append(loss)", "append(loss.detach())"))
    holder = bench.holder("append", ("local", "kept", -1), ("item", "0", 9))
    said = bench.advise("append", holder, category="activation", growth=Growth(forward_share=1.0))
    assert not {"detach", "item", "no_grad"} & set(fixes(said))


NUMBERS = """\
class Estimator:
    def add(self, x):
        value = self.net(x).mean()
        return {returned}

def step(estimator, total, x):
    total += estimator.add(x)
"""


RESIDUAL = """\
class Layer(Module):
    def forward(self, x, memory):
        x = x + self.attention(x, memory)
        return x + self.feed(x)

def evaluate(model, batches):
    for x in batches:
        memory = model(x, memory)
"""


def test_a_residual_connection_is_no_running_sum(bench):
    bench.write(RESIDUAL)
    held = bench.holder("memory = model", ("local", "memory", -1), *THROUGH_GRAPH)
    remedies = bench.advise("self.attention", held)
    assert remedies[0].fix == "detach"
    assert remedies[0].code == "memory = model(x, memory)"
    assert not any("sum" in remedy.why for remedy in remedies)


@pytest.mark.parametrize(("inside", "carried"), [((), False), (THROUGH_GRAPH, True)])
def test_a_container_that_is_made_anew_of_tensors_without_graphs_carries_none(
    bench, inside, carried
):
    bench.write("def log(self, row):\n    self.rows = with_row(self.rows, row)\n")
    held = bench.holder("self.rows", ("attribute", "rows", -1), ("item", "3", 9), *inside)
    remedies = bench.advise("self.rows", held, growth=Growth(forward_share=1.0))
    assert any("of the step before" in remedy.why for remedy in remedies) is carried


@pytest.mark.parametrize(("returned", "a_sum"), [("value.item()", False), ("value", True)])
def test_a_sum_of_what_a_function_returns_as_a_number_keeps_no_graph(bench, returned, a_sum):
    bench.write(NUMBERS.format(returned=returned))
    held = bench.holder("net(x)", ("autograd_node", "MeanBackward0", -1))
    remedies = bench.advise("total +=", held)
    assert any("`estimator.add(x)`" in remedy.why for remedy in remedies) is a_sum


def test_what_gives_nothing_back_comes_after_what_does(bench):
    bench.write(
        "def step(run, obs):\n    run.episodes.append(Episode(obs))\n    run.loss().backward()\n"
    )
    held = bench.holder("append", ("attribute", "episodes", -1), ("item", "0", 9))
    remedies = bench.advise("append", held, category="activation")
    assert [remedy.saves_bytes for remedy in remedies] == [4096, 4096, 0]
    assert (remedies[0].fix, remedies[-1].fix) == ("clear_container", "detach")


SCHEDULED = """\
def handle(self, x):
    loop = asyncio.get_running_loop()
    out = self.model(x)
    loop.call_later(3600, self.expire, out)
"""


def test_what_an_object_of_a_library_keeps_is_told_where_it_is_handed_over(bench):
    bench.write(SCHEDULED)
    held = bench.holder(
        "get_running_loop",
        ("local", "loop", -1),
        ("attribute", "_scheduled", -1),
        ("item", "3", 31),
    )
    first, *_ = bench.advise("self.model", held)
    assert (first.fix, first.line) == ("clear_container", 4)
    assert first.code == "loop.call_later(3600, self.expire, out)"


WRITER = """\
def log(self, image):
    writer = Writer(600, self.write, args=(image,))
    writer.start()
"""


def test_the_line_that_makes_a_library_s_object_which_keeps_its_arguments_is_told(bench):
    bench.write(WRITER)
    links = [
        Link("thread", "Thread-1", "thread"),
        Link("attribute", "args", "Writer"),
        Link("item", "0", "tuple", length=1),
    ]
    library = "/usr/lib/python3.11/site-packages/writers.py"
    held = Holder("thread", library, 9, "", links)
    first, *_ = bench.advise("writer.start()", held)
    assert (first.fix, first.line) == ("del_ref", 2)
