"""What lmx replaces in transformers, so that no checkpoint brings code along, and none of its files
is read to see what it exports."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import dynamic_module_utils

from tests.support.references.private_parts import PARTS, find, said

LIBRARY = "transformers"


def test_every_dynamic_module_goes_through_the_function_that_is_replaced() -> None:
    part, _ = PARTS[LIBRARY]
    assert find(LIBRARY, part) is not None
    words = said(LIBRARY, part.where, part.files, part.use)
    source = inspect.getsource(dynamic_module_utils.get_class_from_dynamic_module)
    assert "return get_class_in_module(" in source, f"{words}classes are loaded in another way"
    # It may be replaced already in this process: the source says what it takes and executes.
    whole = inspect.getsource(dynamic_module_utils)
    takes = re.search(r"def get_class_in_module\(\s*class_name: str", whole)
    assert takes, f"{words}it no longer takes the name of the class first"
    assert whole.count("exec_module(") == 1, f"{words}code is executed in more places than one"


def test_what_transformers_exports_is_kept_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, part = PARTS[LIBRARY]
    assert find(LIBRARY, part) is not None
    monkeypatch.setenv("LMX_CACHE_DIR", str(tmp_path))
    plain, first, second = (_exports(quick) for quick in (False, True, True))
    words = said(LIBRARY, part.where, part.files, part.use)
    assert plain["read"] > 2000, f"{words}it no longer reads its files"
    assert 1000 < first["read"] < 2000
    assert second["read"] < 100
    assert plain["names"] == first["names"] == second["names"]
    assert len(plain["names"]) > 1000


def _exports(quick: bool) -> dict[str, Any]:
    """Return the names that transformers exports in a new process, with where each is from, and how
    many files of models were read for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _PROGRAM.format("quick_library_imports" if quick else "nullcontext"),
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_PROGRAM = """
import json, sys
from contextlib import nullcontext
from lmx.worker.mlx.library_imports import quick_library_imports
read = 0
def count(event, arguments):
    global read
    read += event == "open" and "transformers/models/" in str(arguments[0]) and "r" == arguments[1]
sys.addaudithook(count)
with {}():
    import transformers, transformers.models
print(json.dumps({{"read": read, "names": sorted(
    [name, module] for lazy in (transformers, transformers.models)
    for name, module in lazy._class_to_module.items())}}))
"""
