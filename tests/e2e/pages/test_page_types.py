"""The scripts of the page at / are right by their types, which stand in their comments."""

import json
import subprocess
from pathlib import Path

from tests.support.clients.client_packages import node, node_folder
from tests.support.rigs.rig import ROOT

CHECKS = Path(__file__).parent / "page_checks"
ASSETS = ROOT / "router" / "console" / "assets"
OPTIONS = {
    "allowJs": True,
    "checkJs": True,
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "module": "ES2022",
    "moduleResolution": "bundler",
    "noEmit": True,
    "strict": True,
    "target": "ES2022",
    "types": [],
}


def test_the_scripts_of_the_page(tmp_path: Path) -> None:
    tsc = node_folder(CHECKS) / "node_modules" / "typescript" / "bin" / "tsc"
    config = {"compilerOptions": OPTIONS, "include": [f"{ASSETS}/*.js"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    checked = subprocess.run(
        [node(), tsc, "--listFiles", "-p", tmp_path], text=True, capture_output=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    assert {path.name for path in ASSETS.glob("*.js")} <= {
        Path(line).name for line in checked.stdout.splitlines()
    }
