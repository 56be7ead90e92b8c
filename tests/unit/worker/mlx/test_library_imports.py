"""What transformers exports is found out once for all workers."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.worker.mlx.library_imports import remembered

EXPORTS: dict[Any, Any] = {
    frozenset(): {"cache": {"Cache"}},
    "llama": {
        frozenset({"torch", "vision"}): {"modeling_llama": {"Llama", "LlamaModel"}},
        frozenset(): {"configuration_llama": {"LlamaConfig"}},
        "inner": {},
    },
}


class Scanner:
    def __init__(self) -> None:
        self.scanned: list[str] = []

    def __call__(self, path: Any) -> dict[Any, Any]:
        self.scanned.append(str(path))
        return EXPORTS


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "transformers" / "models"
    (folder / "llama").mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def test_the_folder_is_scanned_once(models: Path, tmp_path: Path) -> None:
    scanner, kept = Scanner(), tmp_path / "cache" / "kept.json"
    first = remembered(scanner, models, kept)
    assert first(models) == first(str(models / "__init__.py")) == EXPORTS
    second = remembered(scanner, models, kept)
    assert second(str(models)) == EXPORTS
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
    remembered(Scanner(), models, kept)(models)
    whole = kept.read_bytes()
    if content is None:
        kept.unlink()
        kept.mkdir()
    elif b"exports" in content:
        kept.write_text(json.dumps(json.loads(whole) | json.loads(content)))
    else:
        kept.write_bytes(content)
    scanner = Scanner()
    assert remembered(scanner, models, kept)(models) == EXPORTS
    assert scanner.scanned == [str(models)]
    assert content is None or kept.read_bytes() == whole


def test_another_installation_is_scanned(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner, kept = Scanner(), tmp_path / "kept.json"
    remembered(scanner, models, kept)(models)
    monkeypatch.setattr("lmx.worker.mlx.library_imports.version", lambda _: "99")
    remembered(scanner, models, kept)(models)
    (models / "new").mkdir()
    remembered(scanner, models, kept)(models)
    assert len(scanner.scanned) == 3
