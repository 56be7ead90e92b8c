"""What the processes have imported when the first chat answer is there."""

import re
from pathlib import Path

from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import PATIENT, http, rig, whole

NOBODY = {"torch", "opentelemetry", "gguf", "scipy", "pandas", "av", "cv2", "requests.api"}
MODELS = {"mlx", "mlx_vlm", "numpy", "transformers", "tokenizers", "huggingface_hub", "llguidance"}
UNUSED = {
    "supervisor": NOBODY
    | MODELS
    | {"aiohttp", "jinja2", "PIL", "prometheus_client", "markdown_it", "lmx.router", "lmx.worker"},
    "router": NOBODY
    | MODELS
    | {"jinja2", "PIL", "rich.console", "yaml", "click", "markdown_it"}
    | {"lmx.supervisor", "lmx.worker"}
    | {"lmx.router.peers.federation", "lmx.router.peers.link", "lmx.router.peers.relay"},
    "worker": NOBODY
    | {"pydantic", "aiohttp", "rich.console", "click", "urllib3", "mlx_audio", "prometheus_client"}
    | {"lmx.supervisor", "lmx.router", "lmx.worker.media.decoding"}
    | {"lmx.worker.mlx.encoders", "lmx.worker.mlx.speech"},
}
"""Packages and modules of which a plain chat needs nothing, by the process."""


async def test_a_chat_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", "llama")
    config = {"models": [{"id": "m", "source": str(model)}], "timing": PATIENT}
    with rig(config, {"PYTHONPROFILEIMPORTTIME": "1"}) as lmx:
        lmx.wait_state("m", "ready")
        async with http() as session:
            status, _ = await whole(session, lmx.url, "m", "Hi", max_tokens=1)
        assert status == 200
        logs = lmx.home / "logs"
        printed = {
            "supervisor": lmx.output.read_text(),
            "router": (logs / "router.log").read_text(),
            "worker": (logs / "worker-m.log").read_text(),
        }
    for process, text in printed.items():
        imported = set(re.findall(r"^import time: .*\| +(\S+)$", text, re.MULTILINE))
        assert len(imported) > 300
        assert sorted(UNUSED[process] & imported) == [], process
