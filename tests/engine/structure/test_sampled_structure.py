"""A model held to a schema: whatever the temperature, what it says is valid."""

import json
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.states import StructureKind
from lmx.worker.engine.values import ConstraintSource, PromptSource, SequenceSampling
from tests.support.models.tiny_models import CONTEXT_TOKENS, make_tiny_model
from tests.support.references.json_schemas import SCHEMAS
from tests.support.rigs.engine_rig import EngineRunner, spec_of

MOST_TOKENS = CONTEXT_TOKENS - 40
CLOSING = '"}]'


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRunner]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models"), "llama")
    made = EngineRunner(spec_of(folder))
    yield made
    made.resident.close()


def hot(runner: EngineRunner, seed: int) -> SequenceSampling:
    """Temperature 1.5. A model with random weights would never think of closing a string."""
    closing = [runner.generator.encode(source).tokens[-1] for source in map(_text, CLOSING)]
    return SequenceSampling(1.5, seed=seed, logit_bias=tuple((token, 4.0) for token in closing))


def _text(char: str) -> PromptSource:
    return PromptSource(text=char)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_of_the_corpus_is_kept_at_temperature_1_5(
    runner: EngineRunner, name: str
) -> None:
    schema = SCHEMAS[name]
    structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "response_format")
    make = runner.generator.constrain(ConstraintSource(structure, None, Thinking(), False))
    assert make is not None
    rows = [
        runner.admit("Say it.", hot(runner, seed), MOST_TOKENS, constraint=make())
        for seed in (1, 2)
    ]
    open_rows = set(rows)
    while open_rows:
        runner.step()
        for row in list(open_rows):
            made = runner.tokens[row]
            if made and made[-1] in runner.facts.eos_token_ids:
                runner.remove(row)
                open_rows.remove(row)
            else:
                assert len(made) < MOST_TOKENS, "an answer that never ends"
                assert row not in runner.failed
    checker = Draft202012Validator.FORMAT_CHECKER
    for row in rows:
        detokenizer = runner.generator.detokenizer(False)
        text = "".join([detokenizer.add(token) for token in runner.tokens[row]])
        Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
