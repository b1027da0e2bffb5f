"""Idioms: containers that are filled, sums, copies that grow, values without a graph."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.find_line import filled_at, forget
from memprof.source_code.idioms import (
    accumulation,
    checks_for_key,
    copies_collection,
    enlarged_copy,
    growing,
    grown_into_new,
    is_cut_off,
    is_partly_cut,
    joins_tensors,
)
from memprof.source_code.program import program_of
from memprof.source_code.verbs import CONTAINER_METHODS, FILLING


@pytest.fixture
def place_in(tmp_path):
    """The statement at a line of a text."""

    def place_in(text, line=1):
        file = tmp_path / "program.py"
        file.write_text(text)
        return program_of(str(file)).at(line)

    return place_in


@pytest.mark.parametrize(
    ("statement", "container", "values", "keyed"),
    [
        ("kept.append(x)", "kept", ["x"], False),
        ("kept.push(x)", "kept", ["x"], False),
        ("kept.put_nowait(x)", "kept", ["x"], False),
        ("kept.extendleft(xs)", "kept", ["xs"], False),
        ("kept.insert(0, x)", "kept", ["x"], False),
        ("kept.add(x)", "kept", ["x"], False),
        ("await kept.put(x)", "kept", ["x"], False),
        ("kept.setdefault(key, x)", "kept", ["x"], True),
        ("kept.setdefault(key, []).append(x)", "kept", ["x"], False),
        ("kept += [x]", "kept", ["x"], False),
        ("self.kept = self.kept + [x]", "self.kept", ["x"], False),
        ("self.kept = [*self.kept, x]", "self.kept", ["x"], False),
        ("kept[len(kept):] = [x]", "kept", ["x"], False),
        ("kept.update({name: x})", "kept", ["x"], True),
        ("kept = {**kept, name: x}", "kept", ["x"], True),
        ("kept = {**kept, **{f(n): x for n, x in xs}, 'a': y}", "kept", ["x", "y"], True),
        ("self.kept = dict(self.kept, name=x)", "self.kept", ["x"], True),
        ("kept = kept | {name: x}", "kept", ["x"], True),
        ("kept |= {name: x}", "kept", ["x"], True),
        ("kept.update(dict(zip(names, x)))", "kept", ["dict(zip(names, x))"], True),
    ],
)
def test_a_container_grows_in_many_ways(statement, container, values, keyed, place_in):
    place = place_in(statement)
    filled = growing(place)
    assert (filled.container, [ast.unparse(v) for v in filled.values], filled.keyed) == (
        container,
        values,
        keyed,
    )
    assert accumulation(place) is None


@pytest.mark.parametrize(
    "statement",
    [
        "meter.update(x)",
        "total = total + x",
        "a = [b, x]",
        "a = {**b, name: x}",
        "mask |= x",
        "mask = mask | x",
        "kept = {**kept, **other}",
        "y = x.add(z)",
        "y = torch.add(x, z)",
        "y = x.put(index, z)",
        "kept.setdefault(key, [])",
        "x = y  # kept.append(x)",
    ],
)
def test_what_only_looks_like_a_container_does_not_grow(statement, place_in):
    assert growing(place_in(statement)) is None


@pytest.mark.parametrize("method", sorted(FILLING - {"setdefault", "update"}))
def test_the_search_for_holders_and_the_rules_know_the_same_methods_that_fill(
    method, place_in, tmp_path
):
    place = place_in(f"x = []\nkept.{method}(x)\n", 2)
    forget()
    assert filled_at(place.program.filename, "kept") == 2
    assert growing(place).container == "kept"


@pytest.mark.parametrize(
    ("statement", "total", "value"),
    [
        ("t += loss", "t", "loss"),
        ("t -= loss", "t", "loss"),
        ("t = t + loss", "t", "loss"),
        ("t = loss + t", "t", "loss"),
        ("t = t - loss", "t", "loss"),
        ("self.t = loss(x) + self.t", "self.t", "loss(x)"),
        ("t.add_(loss)", "t", "loss"),
        ("t.sub_(loss)", "t", "loss"),
        ("t = 0.9 * t + 0.1 * loss", "t", "0.1 * loss"),
        ("t = (1 - w) * loss + t * w", "t", "(1 - w) * loss"),
        ("t = t + loss + 0.5 * other", "t", "loss"),
        ("t = loss if t is None else t + loss", "t", "loss"),
        ("t = 0.9 * t + 0.1 * loss if t else loss", "t", "0.1 * loss"),
        ("t = torch.add(t, loss)", "t", "loss"),
        ("t['a'] = operator.add(loss, t['a'])", "t['a']", "loss"),
        ("t = t.add(loss)", "t", "loss"),
        ("t = t.sub(loss)", "t", "loss"),
    ],
)
def test_a_sum_is_the_same_however_it_is_written(statement, total, value, place_in):
    added = accumulation(place_in(statement))
    assert (ast.unparse(added.total), ast.unparse(added.value)) == (total, value)


@pytest.mark.parametrize(
    "statement",
    [
        "t += [x]",
        "t *= x",
        "t = t * x",
        "t = 0.9 * a + 0.1 * b",
        "self.t = 0.9 * self.t + 0.1 * loss",
        "t = a + b",
        "t = u.add_(x)",
        "t.mul_(x)",
        "t = x  # t + x",
        "t = [x] if t is None else t + [x]",
        "t = a if b is None else a + b",
        "t = torch.add(a, b)",
        "t.add(x)",
    ],
)
def test_what_is_no_sum(statement, place_in):
    assert accumulation(place_in(statement)) is None


@pytest.mark.parametrize(
    ("statement", "enlarged"),
    [
        ("x = torch.cat((x, new))", "x"),
        ("x = torch.stack((x, new))", "x"),
        ("x = torch.dstack([x, new])", "x"),
        ("self.x = F.pad(self.x, (0, 1))", "self.x"),
        ("x = np.append(x, new)", "x"),
        ("y = torch.cat((x, new))", ""),
        ("x = x.append(new)", ""),
        ("x = f(x)  # torch.cat((x, new))", ""),
    ],
)
def test_a_copy_that_grows_is_the_same_by_every_function(statement, enlarged, place_in):
    assert enlarged_copy(place_in(statement).statement) == enlarged


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ("loss.item() * n", True),
        ("float(loss) + 1", True),
        ("loss.float()", False),
        ("f(x.detach())", True),
        ("loss", False),
    ],
)
def test_a_number_among_what_is_added(value, cut):
    assert is_partly_cut(ast.parse(value, mode="eval").body) is cut


def test_methods_that_tensors_have_too_do_not_prove_a_container():
    assert not {"add", "put", "view", "sum", "detach"} & CONTAINER_METHODS


@pytest.mark.parametrize(
    ("value", "cut_off"),
    [
        ("x.mean().detach()", True),
        ("x.detach().clone()", True),
        ("loss.item()", True),
        ("x.data", True),
        ("x.detach()[0]", True),
        ("kept", True),
        ("both", False),
        ("x.detach().mul(w)", False),
        ("net(x.detach())", False),
        ("x", False),
        ("float(x)", True),
        ("x.float()", False),
        ("str(x)", True),
    ],
)
def test_what_has_no_graph_by_its_own_words(place_in, value, cut_off):
    text = f"def step(x, w):\n    kept = x.detach()\n    both = w\n    both = x.detach()\n    a.append({value})\n"
    place = place_in(text, 5)
    assert is_cut_off(place, growing(place).values[-1]) is cut_off


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        ("x = torch.cat([x, y])", True),
        ("kept.append(torch.hstack([x, y]))", True),
        ("x = np.append(x, y)", True),
        ("x = F.pad(\n    x,\n    (0, 1),\n)", True),
        ("kept.append(x)", False),
        ("x = f(x)  # torch.cat([x, y])", False),
        ("x = f('cat')", False),
        ("cat = x + y", False),
        ("for x in xs:\n    y = torch.cat([x, y])", False),
    ],
)
def test_what_joins_tensors(text, joins, place_in):
    assert joins_tensors(place_in(text).statement) is joins


@pytest.mark.parametrize(
    ("text", "line", "copies"),
    [
        ("kept = [x.clone() for x in xs]", 1, True),
        ("kept = {k: v.copy() for k, v in xs.items()}", 1, True),
        ("import copy\nkept = copy.copy(xs)", 2, True),
        ("from copy import deepcopy\nkept = deepcopy(xs)", 2, True),
        ("def f(xs):\n    for x in xs:\n        kept.append(x.clone())", 3, False),
        ("kept = x.clone()", 1, False),
        ("kept = x.clone()  # [y.clone() for y in x]", 1, False),
        ("clone_of = copy_of(xs)", 1, False),
    ],
)
def test_what_copies_all_of_a_collection(text, line, copies, place_in):
    assert copies_collection(place_in(text, line)) is copies


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("y = x.new_empty(n + m)\ny[:n] = x\ny[n:] = z\nx = y\n", "x"),
        ("y = torch.empty(n + m)\ny[:n].copy_(a['x'])\na['x'] = y\n", "a['x']"),
        ("y = torch.zeros(n + m)\ny[:n] = self.x\nself.x = y\n", "self.x"),
        ("y = torch.empty(n)\ny[:n] = x\nz = y\n", ""),
        ("y = torch.empty_like(x)\ny[:] = x\nx = y\n", ""),
        ("y = torch.empty(n)\ny[:n] = z\nx = y\n", ""),
    ],
)
def test_a_tensor_is_copied_into_a_longer_one_that_takes_its_place(text, name, place_in):
    assert grown_into_new(place_in(text)) == name


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ("try:\n    x = kept[key]\nexcept KeyError:\n    kept[key] = x = new()\n", True),
        ("try:\n    x = kept[key]\nexcept (KeyError, TypeError):\n    kept[key] = new()\n", True),
        ("with suppress(KeyError):\n    x = kept[key]\n\nkept[key] = new()\n", True),
        ("try:\n    x = kept[key]\nexcept RuntimeError:\n    kept[key] = x = new()\n", False),
        ("try:\n    x = other[key]\nexcept KeyError:\n    kept[key] = x = new()\n", False),
        ("try:\n    kept[key] = x\nexcept KeyError:\n    kept[key] = x = new()\n", False),
    ],
)
def test_an_entry_that_may_be_missing_is_asked_for(text, is_asked, place_in):
    assert checks_for_key(place_in(text, 4), "kept") is is_asked
