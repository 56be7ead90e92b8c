"""What is in the wheel is what is in the tree."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.make.figures import imports, in_circles
from lmx.supervisor.config.extras import PACKAGES as EXTRAS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_ROOTS = ("protocol", "router", "supervisor", "worker")


def setuptools_settings() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return dict(settings["tool"]["setuptools"])


def folders_with_code() -> set[str]:
    """As dotted names. `py.typed` counts: such a folder is meant to be a package."""
    return {
        ".".join(path.parent.relative_to(ROOT).parts)
        for root in PACKAGE_ROOTS
        for path in (ROOT / root).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }


def test_the_packages_of_an_extra_are_named_as_they_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {name: tuple(extras[name]) for name in EXTRAS} == EXTRAS
    assert set(EXTRAS) == set(extras) - {"dev"}


def test_every_folder_with_code_is_listed() -> None:
    listed = set(setuptools_settings()["packages"])
    assert listed == {f"lmx.{folder}" for folder in folders_with_code()}


def test_every_listed_package_has_its_folder() -> None:
    settings = setuptools_settings()
    for package, folder in settings["package-dir"].items():
        assert package == "lmx." + folder.replace("/", ".")
    assert set(settings["package-dir"]) == {
        package for package in settings["packages"] if package.count(".") == 1
    }


def test_no_module_reaches_itself_by_imports() -> None:
    assert in_circles(imports(ROOT)) == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: a build leaves `build/lib` behind, which the next wheel would take files from.
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in (*PACKAGE_ROOTS, "deploy"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    # First the source archive, and the wheel from what is in that, as a release is built.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (built,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(built), str(source)]
    subprocess.run(check, check=True, stdout=subprocess.DEVNULL)
    return built


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        "lmx/" + path.relative_to(ROOT).as_posix()
        for root in PACKAGE_ROOTS
        for path in (ROOT / root).rglob("*")
        if path.suffix in (".css", ".js", ".md", ".py", ".yaml") or path.name == "py.typed"
    }
    assert wanted <= held
    shared = {name for name in held if not name.startswith("lmx/")}
    assert {re.sub(r"^lmx-.*\.data/data/share/lmx/", "", name) for name in shared} == {
        "com.lmx.supervisor.plist",
        "constraints.txt",
        "grafana-dashboard.json",
        "lmx.example.yaml",
        "lmx.schema.json",
        "lmx.service",
        "overrides.txt",
        "prometheus-alerts.yaml",
        "requirements.txt",
    }


def test_the_page_of_a_package_index_leads_nowhere_that_is_not_there(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    head, _, page = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert page.startswith("# lmx\n")
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []


def test_the_wheel_installs_and_imports(wheel: Path, tmp_path: Path) -> None:
    # A pure wheel is installed by unpacking it: that needs no pip, which uv's environments lack.
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys, lmx.protocol.errors as errors; print(errors.__file__);"
        "print([name for name in ('aiohttp', 'mlx', 'numpy') if name in sys.modules])"
    )
    # PYTHONPATH comes before the editable install, whose finder is asked last.
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    place, heavy = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert heavy == "[]"


def test_make_run_says_what_it_installs_and_brings_no_developers_tools() -> None:
    done = subprocess.run(
        ["make", "-n", "run", "VENV=/no/such/folder"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "Installing lmx into .venv. It happens once" in done.stdout
    assert "-r deploy/requirements.txt" in done.stdout
    assert "requirements-dev.txt" not in done.stdout
    # A download of minutes shows its progress.
    assert "pip install " in done.stdout
    assert "install --quiet" not in done.stdout


def test_constraints_are_exact_and_name_no_index() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r'[\w.-]+==[\w.]+(; sys_platform == "(darwin|linux)")?', line), line


READS_WHAT_STRANGERS_SEND = {
    "aiohttp", "av", "filelock", "gguf", "gguf2mlx", "huggingface-hub", "jinja2", "jiter",
    "llguidance", "mlx", "mlx-audio", "mlx-lm", "mlx-vlm", "msgpack", "orjson", "pillow",
    "pillow-heif", "pydantic", "regex", "yarl",
}  # fmt: skip
"""Requests, media, URLs, schemas, templates, files of models."""


def test_what_safety_rests_on_has_a_floor_that_the_constraints_meet() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {
        canonicalize_name(one.name): next(iter(one.specifier)).version
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
        for one in [Requirement(line)]
    }
    wanted = [Requirement(line) for line in settings["project"]["dependencies"]]
    floors = set()
    for one in wanted:
        name = canonicalize_name(one.name)
        assert pins[name] in one.specifier, f"{one}: constraints.txt has {pins[name]}"
        if any(said.operator in (">=", "==") for said in one.specifier):
            floors.add(name)
    assert floors >= READS_WHAT_STRANGERS_SEND
    (aiohttp,) = (one for one in wanted if one.name == "aiohttp")
    assert "3.14.0" not in aiohttp.specifier


NOT_NEEDED = {
    *("datasets", "fastapi", "scipy", "sounddevice", "starlette", "uvicorn", "websockets"),
}
"""What lmx's dependencies ask for, and nothing that lmx runs imports."""
NOT_NEEDED_BY_TOOLS = {"keyring"}
"""The same of the developers' tools."""
ENVIRONMENTS = [
    {"sys_platform": platform, "platform_system": system, "platform_machine": machine}
    | {"python_version": version, "python_full_version": f"{version}.0"}
    for platform, system, machine in (("linux", "Linux", "x86_64"), ("darwin", "Darwin", "arm64"))
    for version in ("3.11", "3.12", "3.13", "3.14")
]


def installed(*extras: str) -> set[str]:
    """The lines for everything that lmx asks for and its dependencies do, on any machine of
    ``ENVIRONMENTS``, but for what is not needed."""
    platforms: dict[str, set[str]] = {}
    for environment in ENVIRONMENTS:
        todo, seen = [("lmx", frozenset(extras))], set()
        while todo:
            if (entry := todo.pop()) in seen:
                continue
            seen.add(entry)
            name, wanted = entry
            platforms.setdefault(name, set()).add(environment["sys_platform"])
            try:
                asked = requires(name) or []
            except PackageNotFoundError:
                continue  # one for the other platform
            for one in map(Requirement, asked):
                found = canonicalize_name(one.name)
                needed = one.marker is None or any(
                    one.marker.evaluate({**environment, "extra": extra}) for extra in {"", *wanted}
                )
                if needed and found not in NOT_NEEDED | NOT_NEEDED_BY_TOOLS:
                    todo.append((found, frozenset(one.extras)))
    del platforms["lmx"]
    return {
        name if len(on) == 2 else f'{name}; sys_platform == "{min(on)}"'
        for name, on in platforms.items()
    }


def listed(name: str) -> set[str]:
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_the_lists_are_what_the_packages_ask_for() -> None:
    assert listed("requirements.txt") == installed()
    assert listed("requirements-dev.txt") == installed("dev") - installed()
    left_out = {line.partition(";")[0] for line in listed("overrides.txt")}
    assert left_out == NOT_NEEDED


@pytest.mark.parametrize(
    "name", ["constraints.txt", "pyproject.toml", "Makefile", ".ci/run", "deploy/requirements.txt"]
)
def test_no_registry_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(
        r"://|index-url|find-links|trusted-host|\b[\w-]+\.(org|io|com|net)\b", text
    )


def test_the_command_has_two_names(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    lines = archive.read(name).decode().split("\n")
    assert "lmx = lmx.supervisor.cli.main:main" in lines
    assert "lmx-supervisor = lmx.supervisor.cli.main:main" in lines
