"""Which machines lmx can be installed on, and what a Mac would install."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "system", "machine", "release", "says"),
    [
        ((3, 11), "Linux", "x86_64", "", ""),
        ((3, 14), "Darwin", "arm64", "26.1", ""),
        ((3, 9), "Darwin", "arm64", "26.1", "this is 3.9"),
        ((3, 15), "Linux", "aarch64", "", "3.11 to 3.14"),
        ((3, 12), "Darwin", "x86_64", "15.1", "Rosetta"),
        ((3, 12), "Darwin", "arm64", "13.7", "macOS 14"),
    ],
)
def test_what_is_in_the_way_is_said(
    version: tuple[int, int], system: str, machine: str, release: str, says: str
) -> None:
    said = script("supported").problem(version, system, machine, release)
    assert says in said
    assert bool(said) == bool(says)


def test_the_bounds_are_those_of_the_package() -> None:
    text = (DEPLOY.parent / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11,<3.15"' in text
    assert "Python :: 3.14" in text


def test_what_another_day_could_bring_otherwise_is_named() -> None:
    resolve_pins = script("resolve_pins")
    constraints = resolve_pins.pins(["# a comment", "Some_Thing==1.2", "other==3"])
    resolved = resolve_pins.pins(["some-thing==1.2", "other==4", "new==1"])
    assert resolve_pins.unpinned(resolved, constraints) == ["new", "other"]
