"""Writes the table of ``docs/models.md`` (`make models-page`), after examining a tiny model of each
type."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from conformance import FOLLOWING, PROMPT, examine
from model_table import PAGE, line
from text_models import CONFIGS, make_text_model, reference_logits

lines = []
for model_type in sorted(CONFIGS, key=str.lower):
    with tempfile.TemporaryDirectory() as name:
        folder = make_text_model(Path(name), model_type)
        lines.append(line(model_type, examine(folder, reference_logits(folder, PROMPT, FOLLOWING))))
page = PAGE.read_text()
PAGE.write_text(
    re.sub(r"(\| --- .*\n)(\|.*\n)*", lambda found: found[1] + "\n".join(lines) + "\n", page)
)
