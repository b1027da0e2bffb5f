"""The documentation leads where it says, and the map of the architecture is the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may be called, as the forge makes it of the text."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"\w+:", link):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (heading and heading not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(page.read_text()))
        pages = {(page.parent / link).resolve() for link in links if link.endswith(".md")}
        waiting += pages.intersection(PAGES) - reached
    # Pages of rules are listed by `memprof explain`, so that a rule is registered nowhere.
    rules = {page for page in PAGES if page.parent.name == "rules" and page.stem != "README"}
    assert set(PAGES) - reached - rules == set()


def test_the_map_of_the_architecture_is_the_tree_of_the_library():
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert len(text.splitlines()) <= 110  # two screens
    drawn, above = set(), ["memprof"]
    for line in text.split("```")[1].split("cli/memprof_cli/")[0].splitlines():
        entry = re.match(r"([│ ]*)[├└]── ([\w, ]+?)(/?)(  |$)", line)
        if entry is not None:
            bars, names, folder, _ = entry.groups()
            below = [*above[: 1 + len(bars) // 4], *([names] if folder else [])]
            drawn |= (
                {"/".join(below)}
                if folder
                else {"/".join([*below, f"{name}.py"]) for name in names.split(", ")}
            )
            above = below
    packages = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("memprof/**/*.py")}
    assert {name for name in drawn if not name.endswith(".py")} == packages - {"memprof"}
    assert [name for name in drawn if not (ROOT / name).exists()] == []


def test_every_file_that_the_internals_name_is_there():
    text = (ROOT / "docs" / "internals.md").read_text()
    names = set(re.findall(r"`([\w/]+\.(?:py|md))`", text))
    assert names
    assert [
        name for name in sorted(names) if not [*ROOT.glob(name), *ROOT.glob(f"memprof/**/{name}")]
    ] == []
