"""`make test` tries properties with the same examples, whatever else a process has run."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rigs.budgets import WHOLE


def drawn() -> list[list[str]]:
    found: list[list[str]] = []

    @given(st.lists(st.text()))
    def tried(texts: list[str]) -> None:
        found.append(texts)

    tried()
    return found


@pytest.mark.skipif(WHOLE, reason="examples are random")
def test_examples_are_the_same_whatever_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    module = tmp_path / "of_ours.py"
    module.write_text(f"WORDS = {[f'word {number}' for number in range(500)]}\n")
    spec = importlib.util.spec_from_file_location("of_ours", module)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setitem(sys.modules, "of_ours", made)
    assert drawn() == before
