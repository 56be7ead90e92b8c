"""A model that is added while lmx runs: it is there after a restart, and gone when removed."""

import json
import stat
from pathlib import Path

from tests.support.rigs.rig import Rig, rig, scripted


def models(lmx: Rig) -> dict[str, bool]:
    return {line["model"]: line["added"] for line in lmx.status()["workers"]}


def test_an_added_model_outlives_supervisors_until_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with rig({"models": [scripted("alpha")]}) as lmx:
        pid = lmx.wait_state("alpha", "ready")["pid"]
        done = lmx.cli("add", "new", str(tmp_path), "--context-length", "64")
        assert (done.returncode, "new is served" in done.stdout) == (0, True), done.stderr
        refused = lmx.cli("add", "new", "org/other")
        assert (refused.returncode, "is taken" in refused.stderr) == (1, True)
        both = {"alpha": False, "new": True}
        assert models(lmx) == both
        kept = lmx.home / "state" / "models.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert [each["id"] for each in json.loads(kept.read_text())["models"]] == ["new"]
        assert "nothing changed" in lmx.cli("reload").stdout
        assert lmx.cli("restart", "--supervisor").returncode == 0
        assert models(lmx) == both
        assert lmx.cli("remove", "alpha").returncode == 1
        removed = lmx.cli("remove", "new")
        assert (removed.returncode, "is removed" in removed.stdout) == (0, True), removed.stderr
        assert json.loads(kept.read_text()) == {"models": []}
        assert models(lmx) == {"alpha": False}
        assert lmx.worker("alpha")["pid"] == pid
