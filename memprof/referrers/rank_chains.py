"""Holders from chains of references: ranked, with the line that a person should look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import msgspec

from memprof.records import Holder
from memprof.reference_chain import (
    CYCLES,
    VARIABLES,
    Link,
    LinkKind,
    breadth,
    instance_attribute,
    is_field,
)
from memprof.referrers.roots import source_line
from memprof.source_code.find_line import (
    assigned_in_class,
    assigned_in_function,
    called_at,
    creates_graph_at,
    defines_class,
    filled_at,
    filled_below,
    grown_at,
    is_filled_at,
    is_filled_in_class,
    passed_at,
    registered_at,
    saved_at,
    stored_under,
)
from memprof.sources.user_files import is_user_file

__all__ = ["holder_of", "score"]

_ITEM = LinkKind.ITEM
_OWN_LINE = (
    LinkKind.HOOK,
    LinkKind.ATEXIT,
    LinkKind.TASK,
    LinkKind.LRU_CACHE,
    LinkKind.LOG_RECORD,
    LinkKind.CLASS_ATTRIBUTE,
    LinkKind.CTX_ATTRIBUTE,
    LinkKind.DEFAULT_ARGUMENT,
    LinkKind.CLOSURE,
)
_LOCALS = frozenset({LinkKind.LOCAL, LinkKind.FRAME, LinkKind.GENERATOR, LinkKind.COROUTINE})
_KNOWING = frozenset({LinkKind.BOUND_METHOD, LinkKind.CLOSURE, LinkKind.PARTIAL})
_IN_MODULES = frozenset({LinkKind.PARAMETER, LinkKind.BUFFER, LinkKind.MODULE_ATTRIBUTE})
_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE})
_NO_LINE = frozenset(
    {
        LinkKind.AUTOGRAD_NODE,
        LinkKind.SAVED_TENSOR,
        LinkKind.BASE,
        LinkKind.GRAD,
        LinkKind.CYCLE,
        LinkKind.CPP_CYCLE,
        LinkKind.UNKNOWN,
    }
)
_TELLING = (
    LinkKind.CYCLE,
    LinkKind.CPP_CYCLE,
    LinkKind.NOTEBOOK,
    LinkKind.LOG_RECORD,
    LinkKind.LRU_CACHE,
    LinkKind.EXCEPTION,
    LinkKind.TRACEBACK,
    LinkKind.CTX_ATTRIBUTE,
    LinkKind.SAVED_TENSOR,
    LinkKind.HOOK,
    LinkKind.ATEXIT,
    LinkKind.TASK,
    LinkKind.GRAD,
    LinkKind.CLASS_ATTRIBUTE,
    LinkKind.CLOSURE,
    LinkKind.DEFAULT_ARGUMENT,
    LinkKind.PARTIAL,
    LinkKind.GENERATOR,
    LinkKind.COROUTINE,
    LinkKind.ITERATOR,
    LinkKind.THREAD,
    LinkKind.ITEM,
    LinkKind.QUEUE,
    LinkKind.OPTIMIZER_STATE,
    LinkKind.PARAMETER,
    LinkKind.BUFFER,
    LinkKind.KEY,
    LinkKind.BASE,
    LinkKind.MODULE_ATTRIBUTE,
    LinkKind.ATTRIBUTE,
    LinkKind.BOUND_METHOD,
    LinkKind.FRAME,
    LinkKind.AUTOGRAD_NODE,
    LinkKind.GLOBAL,
    LinkKind.LOCAL,
    LinkKind.UNKNOWN,
)
"""How much a kind says about why a tensor is alive, the most first."""
_RANK = {kind: rank for rank, kind in enumerate(_TELLING)}


def score(links: list[Link], *, user: bool) -> tuple[int, int]:
    """How good an explanation a chain is; the lowest is the best."""
    weak = 0 if user else 4
    kinds = [one.kind for one in links]
    if len(links) == 1 and kinds[0] == LinkKind.LOCAL:
        weak += 3  # a variable of a running step; it is bound again in the next
    elif kinds[0] == LinkKind.LOCAL and kinds[1] in (LinkKind.AUTOGRAD_NODE, LinkKind.BASE):
        weak += 3
    if kinds[-1] == LinkKind.SAVED_TENSOR and links[-1].name == "variable":
        weak += 2  # the graph knows every leaf; the leaf's owner is elsewhere
    if links[-1].is_parameter:
        weak += 2
    if LinkKind.UNKNOWN in kinds:
        weak += 2
    return weak, len(links)


def holder_of(links: list[Link], files: list[str]) -> Holder:
    """The record of a chain; ``files`` are the user's sources in which a line may be looked for."""
    links = [_with_line(one, files) for one in links]
    filename, line = _best_line(links, files)
    return Holder(
        kind=_most_telling(links),
        filename=filename,
        line=line,
        code=source_line(filename, line),
        links=links,
    )


def _most_telling(links: list[Link]) -> LinkKind:
    """Return the kind of the link that says most about why the tensor is alive."""
    telling = [
        link.kind for at, link in enumerate(links) if at == len(links) - 1 or not is_field(link)
    ]
    return min(telling, key=_RANK.__getitem__, default=LinkKind.UNKNOWN)


def _with_line(one: Link, files: list[str]) -> Link:
    """The link with the line that makes or fills what it names, where that is found."""
    if one.line and one.kind not in _LOCALS:
        return one
    filename, line = _line_of(one, files)
    return msgspec.structs.replace(one, filename=filename, line=line) if line else one


def _best_line(links: list[Link], files: list[str]) -> tuple[str, int]:
    """The line a person should look at first."""
    if any(one.kind == LinkKind.GRAD for one in links[:-1]):  # a gradient that has a graph
        filename, line = _cpp_line(links, files)
        if line:
            return filename, line
    surely, others = _by_merit(links)
    back = _pointing_back(links, files) if links[0].kind in CYCLES else ("", 0)
    lines = (
        *(_line_at(links, at, files) for at in surely),
        back,
        *(_line_at(links, at, files) for at in others),
    )
    user_lines = [(name, line) for name, line in lines if line and source_line(name, line)]
    user_lines.sort(
        key=lambda one: not is_user_file(one[0])
    )  # a library's only if there is no other
    return user_lines[0] if user_lines else _cpp_line(links, files)


def _line_at(links: list[Link], at: int, files: list[str]) -> tuple[str, int]:
    one = links[at]
    holds_items = at + 1 < len(links) and links[at + 1].kind in (_ITEM, LinkKind.KEY)
    if holds_items and one.kind != LinkKind.CLASS_ATTRIBUTE:
        return _filling_line(links, at, files)
    if one.kind == LinkKind.CLOSURE:
        return one.filename, registered_at(one.filename, one.type_name) or one.line
    return one.filename, one.line


def _pointing_back(links: list[Link], files: list[str]) -> tuple[str, int]:
    """The line that makes one object of a cycle know the one that it belongs to."""
    attributes = [one for one in links if one.kind in _ATTRIBUTES and one.name]
    for own in (True, False):
        for one in attributes:
            for filename in dict.fromkeys([one.filename, *files]):
                line = passed_at(filename, _source_name(one), own=own)
                if line and is_user_file(filename):
                    return filename, line
    return "", 0


def _filling_line(links: list[Link], at: int, files: list[str]) -> tuple[str, int]:
    """The line that fills the container at ``at``, which may lie in other containers."""
    while at and links[at].kind == _ITEM:
        at -= 1
    one = links[at]
    inside = list(takewhile(lambda two: two.kind == _ITEM, links[at + 1 :]))
    filled = partial(
        filled_at,
        one.filename,
        _source_name(one),
        keys=[two.name for two in inside if is_field(two)],
        class_name=one.type_name,
        function=one.type_name.rpartition(".")[2] if one.kind == LinkKind.LOCAL else "",
        view=links[-1].kind == LinkKind.BASE,
        as_key=links[at + 1].kind == LinkKind.KEY,
        after=one.line if one.kind == LinkKind.CLOSURE else 0,
    )
    line = filled(of_library=_is_of_no_file(one, files)) or filled()
    if line and is_filled_at(one.filename, line):
        return one.filename, line
    for two in reversed([two for two in inside[:-1] if is_field(two)]):
        fills_name = partial(filled_below, key=two.name.strip("'"))
        filename, below = _first_line(files, fills_name)
        if below:
            return filename, below
    return one.filename, line or one.line


def _by_merit(links: list[Link]) -> tuple[list[int], list[int]]:
    """Places in the chain, those whose line explains most first: what surely does, and others."""
    kinds = [one.kind for one in links]
    places = range(len(links))
    following = [*kinds[1:], kinds[1] if kinds[0] in CYCLES and len(kinds) > 1 else ""]
    keeps_exception = [
        at for at in places if (kinds[at], following[at]) == (LinkKind.FRAME, LinkKind.EXCEPTION)
    ]
    stores_graph = [
        at
        for at in places
        if kinds[at] in _ATTRIBUTES and _is_graph(kinds[at + 1 :] or [following[at]])
    ]
    own = [at for kind in _OWN_LINE for at in places if kinds[at] == kind]
    own = [at for at in own if kinds[at] != LinkKind.CLOSURE or not _is_near_a_list(links, at)]
    if instance_attribute(links) is not None:
        own = [at for at in own if kinds[at] != LinkKind.CLASS_ATTRIBUTE]
    fillable = [
        at
        for at in places
        if kinds[at] == _ITEM and at and (links[at].length > 1 or is_field(links[at]))
    ]
    fillable = [at for at in fillable if at == len(links) - 1 or not is_field(links[at])]
    fillable.sort(key=lambda at: breadth(links[at]), reverse=True)
    rest = [at for at in places if kinds[at] not in _NO_LINE]
    interactive = (
        [0] if kinds[0] == LinkKind.GLOBAL and links[0].type_name == "sys" else []
    )  # sys.last_*
    surely = [
        *interactive,
        *keeps_exception,
        *stores_graph,
        *(_holding_methods(links) if kinds[0] in CYCLES else []),
        *own,
    ]
    return list(dict.fromkeys(surely)), list(
        dict.fromkeys([*(at - 1 for at in fillable), *rest[::-1]])
    )


def _is_near_a_list(links: list[Link], at: int) -> bool:
    """Whether a container of many things is the holder to look at.

    What closes over something is one of them, or what it closes over has them.
    """
    near = [*links[:at], *links[at + 2 :]]
    return any(one.kind == _ITEM and one.length > 1 and not is_field(one) for one in near)


def _holding_methods(links: list[Link]) -> list[int]:
    """Attributes of objects in a cycle that hold a function which knows its object."""
    places = []
    for at, one in enumerate(links):
        inner = (
            two for two in links[at + 1 :] if two.kind != _ITEM and two.type_name != "function"
        )
        below = next((two.kind for two in inner), "")
        if one.kind in _ATTRIBUTES and one.type_name != "function" and below in _KNOWING:
            places.append(at)
    return places


def _is_graph(kinds: Sequence[str]) -> bool:
    """Whether an attribute holds a tensor with a graph, or a tuple or list of such."""
    below = next((kind for kind in kinds[:2] if kind != _ITEM), "")
    return below == LinkKind.AUTOGRAD_NODE


def _cpp_line(links: list[Link], files: list[str]) -> tuple[str, int]:
    """For chains that run through C++ alone: what saved the tensor, or gave gradients a graph."""
    for one in links[::-1]:
        for filename in files:
            line = 0
            if one.kind == LinkKind.SAVED_TENSOR:
                line = saved_at(filename, one.type_name)
            elif one.kind == LinkKind.GRAD:
                line = creates_graph_at(filename)
            if line:
                return filename, line
    return "", 0


def _line_of(one: Link, files: list[str]) -> tuple[str, int]:
    """The line that makes or fills what a link names."""
    if one.kind == LinkKind.CLASS_ATTRIBUTE:
        if not one.filename:  # a library's class, which keeps what it is called with
            return _first_line(files, lambda filename: called_at(filename, one.type_name))
        return one.filename, assigned_in_class(one.filename, one.type_name, one.name)
    if one.kind in (LinkKind.ATEXIT, LinkKind.TASK):
        function_name = "register" if one.kind == LinkKind.ATEXIT else one.name
        own = [one.filename, *files]
        return _first_line(own, lambda filename: called_at(filename, function_name))
    if one.kind in _LOCALS:
        return one.filename, assigned_in_function(one.filename, one.name, one.line) or one.line
    if one.kind == LinkKind.ITERATOR:
        return _first_line(files, lambda filename: called_at(filename, one.type_name))
    if one.kind in _IN_MODULES and "parametrizations" in one.name.split("."):
        own = [one.filename, *files]
        return _first_line(own, lambda filename: called_at(filename, "register_parametrization"))
    if one.kind in _IN_MODULES and (container := _with_numbers(one.name)):
        own = [one.filename, *files]
        return _first_line(own, lambda filename: grown_at(filename, "." + container))
    if one.kind == LinkKind.OPTIMIZER_STATE and one.name.isidentifier():
        return _first_line(files, lambda filename: stored_under(filename, one.name))
    if one.kind in (*_NO_LINE, _ITEM, LinkKind.PARAMETER, LinkKind.OPTIMIZER_STATE) or not one.name:
        return "", 0
    in_library = bool(one.filename) and not is_user_file(one.filename)
    if one.kind in VARIABLES and in_library:
        return "", 0
    name, own = _source_name(one), [one.filename, *files]
    # Of a class of the program its file is known; in a notebook a cell has it.
    of_library = not one.filename and _is_of_no_file(one, files)
    line_in = partial(filled_at, name=name, class_name=one.type_name, of_library=of_library)
    # Classes of several files may have an attribute of that name: the object's own comes first.
    filename, line = _first_line(
        own, lambda file: line_in(file) if is_filled_in_class(file, name, one.type_name) else 0
    )
    return (filename, line) if line else _first_line(own, line_in)


def _is_of_no_file(one: Link, files: list[str]) -> bool:
    """Whether it is an attribute of an object whose class none of the program's files defines."""
    return one.kind in _ATTRIBUTES and not any(
        defines_class(file, one.type_name) for file in (one.filename, *files)
    )


def _first_line(files: list[str], line_in: Callable[[str], int]) -> tuple[str, int]:
    """The first of the user's files in which a line is found, and that."""
    for filename in dict.fromkeys(files):
        line = line_in(filename) if is_user_file(filename) else 0
        if line:
            return filename, line
    return "", 0


def _with_numbers(path: str) -> str:
    """``heads`` of ``net.heads.3.weight``: the list of modules or parameters; else empty."""
    names = path.split(".")
    at = next((at for at, name in enumerate(names) if name.isdigit()), 0)
    return names[at - 1] if at else ""


def _source_name(one: Link) -> str:
    """The name as the source index writes it; interactive ``sys.last_*`` are set as attributes."""
    inside = one.kind in (LinkKind.CLOSURE, LinkKind.DEFAULT_ARGUMENT)
    if inside or (one.kind in VARIABLES and one.type_name != "sys"):
        return one.name
    return "." + one.name.split(".")[-1]
