"""What memprof says of a recording, as text to compare: ``python tests/golden/outputs.py [NAME …]``.

The command writes ``expected`` anew; ``--recordings FOLDER --expected FOLDER`` take another set,
``--check`` compares instead and prints what changed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import difflib
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DATA = ROOT / "tests" / "data"

COMMANDS = {
    "leaks": ["leaks"],
    "leaks-json": ["leaks", "--json"],
    "report": ["report", "--no-page"],
    "report-json": ["report", "--json"],
    "oom": ["oom"],
    "oom-json": ["oom", "--json"],
    "what-if-json": ["what-if", "--json"],
}
"""The commands whose output is kept; beside them the data that the page draws."""

TRACES = ("leaks", "report")
"""What is asked of a recording of the CPU: it has no segments to run out of or to replay."""

SNAPSHOTS = (
    "stub-collecting-torch2.15.0",
    "stub-graphs-torch2.7.1",
    "stub-running-out-torch2.15.0",
    "stub-running-out-torch2.4.1",
    "stub-sizes-expandable-torch2.7.1",
    "stub-streams-torch2.15.0",
    "stub-training-torch2.4.1",
    "stub-training-torch2.15.0",
)
"""Snapshots of ``tests/data`` that are part of the set."""

PAGES = (
    "item-running_sum",
    "clear_traceback-kept",
    "set_to_none-gradients",
    "lbfgs_with_a_long_history",
    "stub-running-out-torch2.15.0",
    "stub-training-torch2.4.1",
)
"""The recordings whose page is kept too."""

_FEW = 12
"""An array of more values than this is kept as its length and digest."""


def recordings() -> dict[str, Path]:
    """Every recording of the set by name."""
    runs = {path.name.partition(".json")[0]: path for path in HERE.glob("recordings/*.json.gz")}
    snapshots = {name: DATA / f"{name}.pickle.gz" for name in SNAPSHOTS}
    return dict(sorted((runs | snapshots | {"run-1.0": DATA / "run-1.0.json"}).items()))


def of_folder(folder: Path) -> dict[str, Path]:
    """The recordings in a folder, by name."""
    return {
        path.name.partition(".json")[0]: path
        for path in sorted(folder.iterdir())
        if path.suffix in {".gz", ".json", ".pickle"}
    }


def outputs(path: Path, root: Path, *, pages: bool) -> dict[str, str]:
    """Every output about the recording by name; ``root`` holds the source of what was recorded."""
    texts = {}
    before = Path.cwd()
    os.chdir(path.parent)  # a longer path would wrap other words
    try:
        for name, words in COMMANDS.items():
            if ".pickle" in path.name or name.removesuffix("-json") in TRACES:
                source = [] if words[0] in {"oom", "what-if"} else ["--source", str(root)]
                texts[name] = command([*words, path.name, *source])
        if pages:
            texts |= page(path.name, root)
    finally:
        os.chdir(before)
    return {name: text.replace(str(root), "SOURCE") for name, text in texts.items()}


def command(words: list[str]) -> str:
    """What a command line prints, its errors and its exit status included."""
    from memprof_cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main(words)
        except SystemExit as end:
            print(f"exit {end.code or 0}")
    return text.getvalue()


def page(recording: str, root: Path) -> dict[str, str]:
    """The body of the page and the data that its scripts draw."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        printed = command(["report", recording, "--source", str(root), "-o", str(file)])
        if not file.exists():
            return {"page": printed}
        html = file.read_text()
    packed = re.search(r'<script type="application/octet-stream" id="data">([^<]*)', html)
    assert packed is not None, "the page has no data"
    drawn = gzip.decompress(base64.b64decode(packed[1])).decode()
    data = json.loads(drawn.replace(str(root), "SOURCE"))
    body = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    lines = re.sub(r">\s*<", ">\n<", body)  # so that a change is a line, not the whole page
    return {"page": lines, "page-data": json.dumps(digested(data), indent=1) + "\n"}


def digested(value: object) -> object:
    """A value of JSON with its long arrays of plain values as one line each."""
    if isinstance(value, dict):
        return {key: digested(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > _FEW and not any(isinstance(item, dict) for item in value):
        digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        return f"{len(value)} values, {digest}"
    return [digested(item) for item in value]


def changes(expected: Path, texts: dict[str, str]) -> Iterator[str]:
    """A unified diff for each output that is not as it was."""
    for name, text in texts.items():
        file = expected / f"{name}.txt"
        before = file.read_text() if file.exists() else ""
        if text != before:
            yield "".join(
                difflib.unified_diff(
                    before.splitlines(keepends=True),
                    text.splitlines(keepends=True),
                    str(file),
                    "now",
                    n=2,
                )
            )


def main() -> int:
    """Write or check the expected outputs; 1 where some changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--expected", type=Path, default=HERE / "expected")
    parser.add_argument("--pages", action="store_true", help="the page of every recording")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    chosen = of_folder(options.recordings) if options.recordings else recordings()
    changed = 0
    for name, path in chosen.items():
        if options.names and name not in options.names:
            continue
        texts = outputs(
            path, options.source or HERE / "recordings", pages=options.pages or name in PAGES
        )
        folder = options.expected / name
        if options.check:
            for diff in changes(folder, texts):
                changed += 1
                print(diff)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for output, text in texts.items():
            (folder / f"{output}.txt").write_text(text)
    return min(changed, 1)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    os.environ["COLUMNS"] = "110"
    sys.exit(main())
