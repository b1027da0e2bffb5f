"""Figures of the house: ``python tests/benchmarks/structure.py [ROOT …]`` prints a column for each.

The table "before and after" of docs/architecture.md comes from here. Each ROOT is a checkout of
memprof, by default this one. Nothing is imported from it but in a process of its own, which reads
the same recording in every checkout.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[2]
RECORDING = HERE / "tests" / "golden" / "recordings" / "item-running_sum.json.gz"
PACKAGES = {
    "memprof": "memprof",
    "memprof_cli": "cli/memprof_cli",
    "memprof_dashboards": "dashboards/memprof_dashboards",
}
PARTICIPLES = frozenset(
    [
        "asked",
        "called",
        "chosen",
        "counted",
        "ended",
        "found",
        "given",
        "gone",
        "held",
        "judged",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "named",
        "read",
        "said",
        "seen",
        "shown",
        "taken",
        "told",
        "unread",
        "wanted",
    ]
)

WALK = """
import contextlib, io, json, sys
root, recording = sys.argv[1:]
files, functions, moves = set(), set(), 0
rules = ("/rules/waste/", "/rules/growth/", "/rules/whole_run/")
def watch(frame, event, argument):
    global moves
    if event != "call":
        return
    code = frame.f_code
    if not code.co_filename.startswith(root) or code.co_name == "<module>":
        return
    files.add(code.co_filename)
    functions.add((code.co_filename, code.co_firstlineno))
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(root):
        caller = caller.f_back
    moves += caller is not None and caller.f_code.co_filename != code.co_filename
from memprof_cli import main
for profile in (None, watch):  # imports, whose class bodies are calls too, come with the first
    sys.setprofile(profile)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(["leaks", recording])
sys.setprofile(None)
ruled = sum(any(room in file for room in rules) for file in files)
print(json.dumps([len(files), ruled, len(functions), moves]))
"""
"""Counts the files and functions that run, and the calls that lead from one file to another."""


def sources(root: Path) -> dict[str, Path]:
    """Every module of the library, the command line and the pages, by its name."""
    named = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            named[".".join((package, *parts)).removesuffix(".__init__")] = path
    return named


def imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """What each module imports as it is itself imported; imports for annotations are left out."""
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: Path, modules: dict[str, Path]) -> Iterable[str]:
    statements = list(ast.parse(path.read_text()).body)
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in modules)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                below = f"{statement.module}.{alias.name}"
                name = below if below in modules else statement.module
                if name in modules:
                    yield name
        elif isinstance(statement, (ast.If, ast.Try)):
            statements += [*statement.body, *statement.orelse]


def depth(graph: dict[str, set[str]]) -> int:
    """The modules of the longest chain in which each imports the next."""
    open_now: set[str] = set()

    @cache
    def below(name: str) -> int:
        open_now.add(name)
        longest = max((below(one) for one in graph[name] if one not in open_now), default=0)
        open_now.discard(name)
        return 1 + longest

    return max(map(below, graph))


def rooms(root: Path) -> dict[str, int]:
    """Modules of the library by folder; those of the root under ``.``; packages' own left out."""
    counts: dict[str, int] = {}
    for path in (root / "memprof").rglob("*.py"):
        if path.name != "__init__.py":
            folder = str(path.parent.relative_to(root / "memprof"))
            counts[folder] = counts.get(folder, 0) + 1
    return dict(sorted(counts.items()))


def kinds_of_waste(root: Path) -> list[tuple[str, ...]]:
    """The names of each kind of waste: of a rule's file, or of a member of the former enum."""
    rules = sorted((root / "memprof" / "rules" / "waste").glob("[a-z]*.py"))
    if rules:
        return [(path.stem, path.stem.replace("_", "-")) for path in rules]
    text = (root / "memprof" / "analysis" / "suspicion.py").read_text()
    return [(f"Pattern.{name}", value) for name, value in re.findall(r'([A-Z_]+) = "(\w+)"', text)]


def files_that_name(root: Path, names: tuple[str, ...]) -> int:
    """Files of the library that name a kind of finding: its own, and those with its quoted name."""
    words = "|".join(
        rf"\b{re.escape(name)}\b" if "." in name else rf"[\"'`]{re.escape(name)}[\"'`]"
        for name in names
    )
    return sum(
        path.stem == names[0] or bool(re.search(words, path.read_text()))
        for path in (root / "memprof").rglob("*.py")
    )


def walk(root: Path) -> list[int]:
    """What ``memprof leaks`` runs for a recording: files, rules of them, functions, moves."""
    path = os.pathsep.join(str(root / Path(folder).parent) for folder in PACKAGES.values())
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(root), str(RECORDING)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def double_classes(paths: Iterable[Path]) -> int:
    """Names that classes of two modules share."""
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sum(count > 1 for count in counts.values())


def bare_participles(paths: Iterable[Path]) -> int:
    """Variables, parameters, attributes and functions named by one of `PARTICIPLES`, by scope."""
    return sum(len(set(_participles(ast.parse(path.read_text()), ()))) for path in paths)


def _participles(node: ast.AST, scope: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], str]]:
    for child in ast.iter_child_nodes(node):
        name = ""
        if isinstance(child, ast.arg):
            name = child.arg
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            name = child.id
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            name = child.attr
        elif isinstance(child, ast.FunctionDef):
            name = child.name
        if name.strip("_") in PARTICIPLES:
            yield scope, name
        inner = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        yield from _participles(child, (*scope, child.name) if inner else scope)


def figures(root: Path) -> dict[str, object]:
    """Every figure of a checkout by its name."""
    modules = sources(root)
    library = [path for name, path in modules.items() if name.split(".")[0] == "memprof"]
    lines = [len(path.read_text().splitlines()) for path in library]
    counts = rooms(root)
    files, rules, functions, moves = walk(root)
    return {
        "files of the library that name one kind of waste, median": median(
            files_that_name(root, names) for names in kinds_of_waste(root)
        ),
        "`memprof leaks`: files, rules of them": f"{files}, {rules}",
        "`memprof leaks`: functions": functions,
        "`memprof leaks`: calls between files": moves,
        "longest chain of imports": depth(imports(modules)),
        "modules of the library": sum(counts.values()),
        "modules in its root": counts.get(".", 0),
        "folders": len(counts) - 1,
        "modules in a folder, median and most": (
            f"{median(counts.values()):.0f}, {max(counts.values())}"
        ),
        "lines of the library": sum(lines),
        "lines of a module, median and most": f"{median(lines):.0f}, {max(lines)}",
        "class names that two modules share": double_classes(modules.values()),
        "names that are a bare participle": bare_participles(modules.values()),
        "rooms": " ".join(f"{name}:{count}" for name, count in counts.items()),
    }


def main() -> None:
    """Print a row for each figure, with a column for each checkout."""
    columns = [figures(Path(root).resolve()) for root in sys.argv[1:] or [HERE]]
    for name in columns[0]:
        print("|", " | ".join([name, *(str(column[name]) for column in columns)]), "|")


if __name__ == "__main__":
    main()
