"""Every import contract of pyproject.toml can be broken.

One whose modules were renamed, or whose list is empty, is kept by any code, so that `make check`
alone would not notice.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("protocol", "router", "supervisor", "worker")
_OPTIONS = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def _forbidden_import(contract: dict[str, Any]) -> tuple[str, str]:
    """Return an importer and an imported module that the contract does not allow together."""
    match contract["type"]:
        case "independence":
            return contract["modules"][0], contract["modules"][1]
        case "forbidden":
            return contract["source_modules"][-1], contract["forbidden_modules"][-1]
        case "protected":
            return "lmx.protocol.errors", contract["protected_modules"][-1]
        case "layers":
            inside = f"{contract['containers'][0]}." if "containers" in contract else ""
            highest, lowest = (
                inside + re.split(r"\s+[|:]\s+", contract["layers"][place])[0] for place in (0, -1)
            )
            return lowest, highest
    raise AssertionError(f"no import is known that breaks a contract of type {contract['type']}")


def _lint(namespace: Path) -> dict[str, str]:
    """Return ``KEPT`` or ``BROKEN`` by contract, for the packages in ``namespace / "lmx"``."""
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import *; lint_imports_command()",
         "--no-cache", "--config", str(_ROOT / "pyproject.toml")],
        env={**os.environ, "PYTHONPATH": str(namespace), "COLUMNS": "1000", "NO_COLOR": "1"},
        cwd=namespace,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    return dict(re.findall(r"^(.+?) (KEPT|BROKEN)", run.stdout, re.MULTILINE)) or {"": run.stdout}


def test_every_contract_is_broken_by_an_import_that_it_forbids(tmp_path: Path) -> None:
    compiled = shutil.ignore_patterns("__pycache__")
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, tmp_path / "lmx" / package, ignore=compiled)
    for contract in _OPTIONS["contracts"]:
        importer, imported = _forbidden_import(contract)
        path = tmp_path.joinpath(*importer.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        with file.open("a") as code:
            code.write(f"\nimport {imported}\n")
    names = {contract["name"] for contract in _OPTIONS["contracts"]}
    assert _lint(tmp_path) == dict.fromkeys(names, "BROKEN")
