"""A tokenizer that is Python code in the model's folder runs where the configuration says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from lmx.protocol.errors import OperationError
from lmx.worker.mlx.model.library import open_checkpoint

pytestmark = pytest.mark.engine

TOKENIZER = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
OPEN = """
import sys
from pathlib import Path
from lmx.worker.mlx.model.library import open_checkpoint
print(type(open_checkpoint(Path(sys.argv[1]), allow_code=True).tokenizer).__name__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = make_tiny_model(tmp_path / "model", "llama")
    (folder / "own.py").write_text(TOKENIZER)
    file = folder / "tokenizer_config.json"
    own = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    return folder


def test_it_runs_where_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    """In a process of its own: what forbids it does so for good."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_MODULES_CACHE": str(tmp_path / "code")},
    )  # fmt: skip
    assert done.stdout.split()[-1] == "OwnTokenizer"


def test_else_the_refusal_names_the_key(folder: Path) -> None:
    with pytest.raises(OperationError, match="allow_checkpoint_code: true"):
        open_checkpoint(folder)
