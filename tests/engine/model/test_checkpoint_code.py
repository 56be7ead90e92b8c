"""A tokenizer that is Python code in the model's folder runs where the configuration says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmx.protocol.errors import OperationError
from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.lifecycle import load_engine
from lmx.worker.mlx.model.library import open_checkpoint
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import spec_of

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
LOAD_WITH_DRAFT = """
import dataclasses
import sys
from pathlib import Path
from tests.support.rigs.engine_rig import spec_of
from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.lifecycle import load_engine
spec = spec_of(Path(sys.argv[1]), speculation=SpeculationSpec(draft_path=sys.argv[1]))
load_engine(dataclasses.replace(spec, allow_checkpoint_code=True), lambda *_: None)
print("loaded")
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


def last_word(program: str, folder: Path, home: Path) -> str:
    """Return what a process of its own writes at its end: what forbids such code does so for
    good."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True, text=True, check=True,
        env=os.environ | {
            "HF_HOME": str(home), "HF_MODULES_CACHE": str(home / "code"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )  # fmt: skip
    return done.stdout.split()[-1]


def test_it_runs_where_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    assert last_word(OPEN, folder, tmp_path) == "OwnTokenizer"


def test_the_permission_of_a_model_covers_its_draft_model(folder: Path, tmp_path: Path) -> None:
    assert last_word(LOAD_WITH_DRAFT, folder, tmp_path) == "loaded"


def test_else_the_refusal_names_the_key(folder: Path) -> None:
    with pytest.raises(OperationError, match="allow_checkpoint_code: true"):
        open_checkpoint(folder)


def test_so_does_that_of_a_draft_model(folder: Path, tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path / "plain", "llama")
    spec = spec_of(plain, speculation=SpeculationSpec(draft_path=str(folder)))
    with pytest.raises(OperationError, match="allow_checkpoint_code: true"):
        load_engine(spec, lambda *_: None)
