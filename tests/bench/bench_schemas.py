"""How many JSON schemas of a collection are accepted, and whether what they allow is valid.

``bench_schemas.py FILE...``: each is a JSON schema. Answers are drawn at random from the grammar,
without a model, and validated by a package that lmx does not use itself.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.states import StructureKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import ConstraintMaker, ConstraintSource
from tests.support.models.tiny_models import make_tokenizer
from tests.support.references.grammar_walk import walk

TOKENIZER = make_tokenizer()
EOS = frozenset({256, 258})
COMPILER = ConstraintCompiler(TOKENIZER, 300, EOS, None, None)
DRAWS = 2


def compiled(schema: Any) -> ConstraintMaker:
    structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "schema")
    maker = COMPILER.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker is not None
    return maker


def drawn(maker: ConstraintMaker, schema: Any, seed: int) -> str:
    """Return what became of one answer."""
    try:
        text = TOKENIZER.decode(walk(maker(), TOKENIZER, EOS, seed))
    except AssertionError:
        return "answers without an end"
    if maker.check is not None and maker.check(text) is not None:
        return "answers that did not pass the check"
    # Nothing is fetched for it.
    kind = validator_for(schema, default=Draft202012Validator)
    valid = kind(schema, registry=Registry()).is_valid(json.loads(text))
    return "valid answers" if valid else "invalid answers"


def main(paths: list[Path]) -> None:
    counts: Counter[str] = Counter()
    slowest_s = 0.0
    for path in paths:
        schema = json.loads(path.read_text(encoding="utf-8"))
        begun_s = time.monotonic()
        try:
            maker = compiled(schema)
        except RequestError as error:
            counts["refused"] += 1
            print(f"{path.name}: {error.message}")
            continue
        finally:
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
        counts["accepted"] += 1
        counts["accepted, a part checked when an answer is whole"] += maker.check is not None
        counts["accepted, with a remark"] += bool(maker.remarks)
        counts.update(drawn(maker, schema, seed) for seed in range(DRAWS))
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")
    print(f"{slowest_s:6.2f} s for the slowest")


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:]])
