"""What transformers exports is found out once for all workers."""

import importlib.metadata
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from lmx.worker.mlx import library_imports
from lmx.worker.mlx.library_imports import kept_file, remembered

EXPORTS: dict[Any, Any] = {
    frozenset(): {"cache": {"Cache"}},
    "llama": {
        frozenset({"torch", "vision"}): {"modeling_llama": {"Llama", "LlamaModel"}},
        frozenset(): {"configuration_llama": {"LlamaConfig"}},
        "inner": {},
    },
}


SPREAD: dict[Any, Any] = {
    frozenset({"torch", "vision"}): {"llama.modeling_llama": {"Llama", "LlamaModel"}},
    frozenset(): {"cache": {"Cache"}, "llama.configuration_llama": {"LlamaConfig"}},
}


class Scanner:
    def __init__(self) -> None:
        self.scanned: list[str] = []

    def __call__(self, path: Any) -> dict[Any, Any]:
        self.scanned.append(str(path))
        return EXPORTS


def spread(exports: dict[Any, Any]) -> dict[Any, Any]:
    assert exports == EXPORTS
    return SPREAD


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "transformers" / "models"
    (folder / "llama").mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def test_the_folder_is_scanned_once(models: Path, tmp_path: Path) -> None:
    scanner, kept = Scanner(), tmp_path / "cache" / "kept.json"
    first = remembered(scanner, spread, models, kept)
    assert first(models) == first(str(models / "__init__.py")) == SPREAD
    second = remembered(scanner, spread, models, kept)
    assert second(str(models)) == SPREAD
    assert scanner.scanned == [str(models)]
    assert [each.name for each in kept.parent.iterdir()] == ["kept.json"]
    second(models / "llama")
    assert scanner.scanned == [str(models), str(models / "llama")]


BROKEN = ('{"exports": []}', '{"exports": {"a": 1}}', '{"exports": {"a": {"b": null}}}')


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"of": 1}', b"\xff", None, *(each.encode() for each in BROKEN)],
)
def test_a_file_that_is_broken_is_replaced(
    models: Path, tmp_path: Path, content: bytes | None
) -> None:
    kept = tmp_path / "kept.json"
    remembered(Scanner(), spread, models, kept)(models)
    whole = kept.read_bytes()
    if content is None:
        kept.unlink()
        kept.mkdir()
    elif b"exports" in content:
        kept.write_text(json.dumps(json.loads(whole) | json.loads(content)))
    else:
        kept.write_bytes(content)
    scanner = Scanner()
    assert remembered(scanner, spread, models, kept)(models) == SPREAD
    assert scanner.scanned == [str(models)]
    assert content is None or kept.read_bytes() == whole


def test_another_installation_is_scanned(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner, kept = Scanner(), tmp_path / "kept.json"
    remembered(scanner, spread, models, kept)(models)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99")
    remembered(scanner, spread, models, kept)(models)
    (models / "new").mkdir()
    remembered(scanner, spread, models, kept)(models)
    assert len(scanner.scanned) == 3


def test_installations_that_are_used_in_turns_keep_a_file_each(tmp_path: Path) -> None:
    scanner = Scanner()
    for name in ("one", "other", "one", "other"):
        folder = tmp_path / name / "models"
        folder.mkdir(parents=True, exist_ok=True)
        assert remembered(scanner, spread, folder, kept_file(tmp_path / "cache", folder))(folder)
    assert [Path(each).parent.name for each in scanner.scanned] == ["one", "other"]


def test_the_oldest_installation_is_forgotten_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_imports, "_MOST_KEPT", 2)
    cache = tmp_path / "cache"
    files = []
    for number, name in enumerate(("one", "two", "three")):
        folder = tmp_path / name / "models"
        folder.mkdir(parents=True)
        files.append(kept_file(cache, folder))
        remembered(Scanner(), spread, folder, files[-1])(folder)
        os.utime(files[-1], (number, number))
    assert sorted(cache.iterdir()) == sorted(files[1:])


def test_versions_are_those_that_python_finds() -> None:
    names = ("numpy", "pydantic", "structlog", "pytest", "lmx")
    found = [version(name) for name in names]
    with library_imports._quick_versions():
        assert [importlib.metadata.version(name) for name in names] == found
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("no-such-package")
    assert importlib.metadata.version is version
