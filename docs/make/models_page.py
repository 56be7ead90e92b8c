"""Writes the tables of ``docs/models.md`` (`make models-page`), after examining a tiny model of
each type; the last one has those that are not examined."""

import re
import tempfile
from pathlib import Path

from tests.support.models.text_models import CONFIGS, make_text_model, reference_logits
from tests.support.models.vlm_models import TEXT_ALONE, make_vlm_model
from tests.support.references.model_table import PAGE, bits_cell, cells, line
from tests.support.references.not_examined import lines as lines_of_others
from tests.support.rigs.conformance import (
    FOLLOWING,
    PROMPT,
    WITH_EYES,
    Conformance,
    examine,
    examine_few_bits,
    examine_seeing,
)
from tests.support.rigs.engine_rig import functions_of_mlx


def text(folder: Path, model_type: str) -> Conformance:
    make_text_model(folder, model_type)
    with functions_of_mlx():
        reference = reference_logits(folder, PROMPT, FOLLOWING)
    return examine(folder, reference)


def text_alone(folder: Path, model_type: str) -> Conformance:
    return examine(make_vlm_model(folder, model_type), None)


tables = []
for types, found_of in (
    (CONFIGS, text),
    (WITH_EYES, examine_seeing),
    (TEXT_ALONE, text_alone),
):
    lines = []
    for model_type in sorted(types, key=str.lower):
        sees = found_of is examine_seeing
        with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as wide:
            reported = cells(model_type, found_of(Path(name), model_type), sees=sees)
            bits = examine_few_bits(Path(wide), model_type, sees=sees)
        lines.append(line(reported | {"kv_bits": bits_cell(bits)}) + "\n")
    tables.append("".join(lines))
tables.append("".join(each + "\n" for each in lines_of_others()))
rest = iter(tables)
page = PAGE.read_text()
PAGE.write_text(re.sub(r"(\| --- .*\n)(\|.*\n)*", lambda found: found[1] + next(rest), page))
