"""What an install puts on a machine: the wheel, the editable install, the command, the hook."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

import memprof

ROOT = Path(__file__).resolve().parent.parent
HOOK = (ROOT / "memprof" / "record" / "startup.pth").read_text()
TOP_LEVEL = {"cuda_memprof.pth", "memprof", "memprof_cli", "memprof_dashboards"}

pytestmark = pytest.mark.slow
needs_hatchling = pytest.mark.skipif(
    not any(d.name == "hatchling" for d in metadata.distributions()),
    reason="needs the build backend: pip install hatchling editables",
)


def run(*command: object, **environment: str) -> str:
    """The standard output of a program that must succeed, run outside the checkout."""
    plain = {n: v for n, v in os.environ.items() if n not in {"MEMPROF", "PYTHONPATH"}}
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        env=plain | environment,
        cwd=Path(__file__).anchor,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds a wheel by the backend itself: hatchling, with no network and no environment."""

    @cache
    def built(hook: str) -> Path:
        folder = tmp_path_factory.mktemp(hook)
        program = (
            f"import os, hatchling.build as b; os.chdir({str(ROOT)!r}); b.{hook}({str(folder)!r})"
        )
        run(sys.executable, "-c", program)
        return next(folder.glob("*.whl"))

    return built


@pytest.fixture(scope="module")
def wheel(build: Callable[[str], Path]) -> Path:
    return build("build_wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked as a site-packages folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def start(site: Path, *, then: str, **environment: str) -> list[str]:
    """Lines printed by an interpreter that has a folder, and nothing else, as its site-packages."""
    # -S keeps the start hook of an editable install out; what memprof depends on comes from the
    # interpreter that runs the tests. addsitedir reads .pth files as Python does when it starts.
    program = (
        f"import sys, site; sys.path += [{str(site)!r}, {sysconfig.get_path('purelib')!r}];"
        f"site.addsitedir({str(site)!r}); {then}"
    )
    return run(sys.executable, "-S", "-c", program, **environment).splitlines()


@needs_hatchling
def test_a_wheel_holds_three_packages_and_the_start_hook_and_nothing_else(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL


@needs_hatchling
def test_a_wheel_says_that_it_is_typed(wheel):
    typed = {f"{package}/py.typed" for package in TOP_LEVEL if not package.endswith(".pth")}
    assert typed <= set(zipfile.ZipFile(wheel).namelist())


@needs_hatchling
def test_a_wheel_carries_the_page_about_every_rule_and_fix(installed):
    then = (
        "from memprof.rules.pages import page, summaries;"
        "names = [name for kind in summaries().values() for name in kind];"
        "print(all(page(name).startswith(f'# `{name}`') for name in names))"
    )
    assert start(installed, then=then) == ["True"]


@needs_hatchling
def test_an_editable_install_brings_no_second_package(build):
    names = zipfile.ZipFile(build("build_editable")).namelist()
    assert not [name for name in names if name.startswith("memprof/")]


@needs_hatchling
def test_check_wheel_contents_finds_nothing_wrong(wheel):
    pytest.importorskip("check_wheel_contents", reason="needs check-wheel-contents")
    said = run(
        sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel
    )
    assert said.strip().endswith("OK")


@needs_hatchling
@pytest.mark.parametrize("kind", ["build_wheel", "build_editable"])
def test_either_kind_of_install_brings_the_start_hook(build, kind):
    assert zipfile.ZipFile(build(kind)).read("cuda_memprof.pth").decode() == HOOK


@needs_hatchling
def test_an_editable_install_names_the_three_roots_of_the_checkout(build):
    roots = zipfile.ZipFile(build("build_editable")).read("_cuda_memprof.pth").decode()
    expected = {ROOT, ROOT / "cli", ROOT / "dashboards"}
    assert {Path(line) for line in roots.splitlines()} == expected


@needs_hatchling
def test_torch_is_no_requirement_but_an_extra(wheel):
    archive = zipfile.ZipFile(wheel)
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    fields = archive.read(name).decode().splitlines()
    wanted = [f for f in fields if f.startswith("Requires-Dist: torch")]
    assert len(wanted) == 1
    assert "extra == 'torch'" in wanted[0]


def test_the_start_hook_is_one_line_that_python_will_execute():
    assert HOOK.count("\n") == 1
    assert HOOK.startswith("import ")


@needs_hatchling
@pytest.mark.parametrize("value", [{}, {"MEMPROF": ""}])
def test_a_python_without_the_variable_loads_nothing_of_memprof(installed, value):
    then = "print([name for name in sys.modules if name.startswith('memprof')])"
    assert start(installed, then=then, **value) == ["[]"]


@needs_hatchling
def test_a_python_with_the_variable_starts_memprof_from_the_wheel(installed, tmp_path):
    then = "print(sys.modules['memprof.record.autostart'].__file__)"
    said = start(installed, then=then, MEMPROF=str(tmp_path / "run.json"))
    assert Path(said[-1]) == installed / "memprof" / "record" / "autostart.py"


def test_the_installed_command_is_memprof():
    commands = metadata.entry_points(group="console_scripts", name="memprof")
    assert {command.value for command in commands} == {"memprof_cli:main"}


def test_the_version_in_the_code_is_that_of_the_distribution():
    assert memprof.__version__ == metadata.version("cuda-memprof")
