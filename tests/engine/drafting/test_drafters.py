"""Drafters that read the model's hidden states: its own heads (MTP), EAGLE-3 and DFlash."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.utils import load_model

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import SequenceSampling, StepOutput
from lmx.worker.mlx.model.hidden import HiddenTap, last_norm, layer_modules
from tests.support.models.tiny_drafters import (
    add_heads,
    make_dflash,
    make_eagle,
    make_heads,
    make_target,
)
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import EngineRunner, spec_of

pytestmark = pytest.mark.long

GREEDY = SequenceSampling(0.0)
PROMPT: Final = [40, 41, 42, 43, 90, 91, 7, 8, 9, 10]
STALL_S: Final = 10.0


@dataclass(frozen=True)
class Case:
    """A target, and the drafter that was made for it."""

    target: Path
    speculation: SpeculationSpec
    least_acceptance: float


class Run(EngineRunner):
    """An engine for which time stands still, so that speculation never seems not to pay."""

    def __init__(self, case: Case, *, plain: bool = False, cache: bool = False) -> None:
        super().__init__(
            spec_of(
                case.target,
                max_decode_stall_s=STALL_S,
                prefix_cache=PrefixCacheSpec(memory_bytes=64 << 20) if cache else None,
                speculation=None if plain else case.speculation,
            )
        )
        self.drafted = self.accepted = self.shared = 0
        if not plain:
            rows: Any = self.generator
            rows._rows._speculation._clock = lambda: 0.0

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        output = super().step(interrupted)
        self.shared += len(output.drafts) > 1
        for drafts in output.drafts:
            self.drafted += drafts.drafted_tokens
            self.accepted += drafts.accepted_tokens
        return output

    @property
    def acceptance(self) -> float:
        return self.accepted / max(1, self.drafted)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    root = tmp_path_factory.mktemp("drafters")
    made: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in made:
            made[name] = _case(name, root / name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def plain_run(case: Callable[[str], Case]) -> Callable[[str], Run]:
    """Engines without a drafter, whose rows have all ended when a test does."""

    @cache
    def made(name: str) -> Run:
        return Run(case(name), plain=True)

    return made


def _case(name: str, root: Path) -> Case:
    match name:
        case "own heads":
            target = add_heads(root / "target", make_target(root / "without", "qwen3_5"))
            return Case(target, SpeculationSpec(own_heads=True), 0.5)
        case "heads":
            target = make_target(root / "target", "qwen3_5")
            draft, least = make_heads(root / "draft", target), 0.5
        case "eagle":
            target = make_target(root / "target", "llama")
            draft, least = make_eagle(root / "draft", target), 0.4
        case _:
            target = make_target(root / "target", "qwen3")
            draft, least = make_dflash(root / "draft"), 0.2
    return Case(target, SpeculationSpec(draft_path=str(draft)), least)


KINDS = ["own heads", "heads", "eagle", "dflash"]
SAMPLINGS = {
    "greedy": GREEDY,
    "temperature": SequenceSampling(1.0, seed=11),
    "filters": SequenceSampling(0.8, top_p=0.9, top_k=20, min_p=0.01, seed=6),
    "penalties": SequenceSampling(0.7, seed=7, repetition_penalty=1.2, frequency_penalty=0.4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_guesses_and_changes_nothing(
    case: Callable[[str], Case], plain_run: Callable[[str], Run], kind: str
) -> None:
    plain, ahead = plain_run(kind), Run(case(kind))
    plain.scores.clear()
    for name, sampling in SAMPLINGS.items():
        before = (ahead.drafted, ahead.accepted)
        more: dict[str, Any] = {"top_logprobs": 1} if name == "greedy" else {}
        expected = plain.alone(PROMPT, sampling, 28, **more)
        assert ahead.alone(PROMPT, sampling, 28, **more) == expected, name
        drafted, accepted = ahead.drafted - before[0], ahead.accepted - before[1]
        least = case(kind).least_acceptance
        assert accepted > drafted * (least if name != "penalties" else 0), (name, accepted, drafted)
    for one, other in zip(plain.scores.values(), ahead.scores.values(), strict=True):
        assert [each.logprob for each in other] == pytest.approx(
            [each.logprob for each in one], abs=1e-4
        )


class EvenOnly:
    """Allows even tokens, and any after a token that three divides."""

    def __init__(self, taken: Sequence[int] = ()) -> None:
        self.taken = list(taken)

    def mask(self) -> Any:
        bits = np.zeros(288, bool)
        bits[0 : 250 : 1 if self.taken and self.taken[-1] % 3 == 0 else 2] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def fork(self) -> EvenOnly:
        return EvenOnly(self.taken)


@pytest.mark.parametrize("kind", ["heads", "eagle", "dflash"])
def test_rows_that_join_leave_and_come_back_are_as_alone(
    case: Callable[[str], Case], plain_run: Callable[[str], Run], kind: str
) -> None:
    rows: list[tuple[list[int], SequenceSampling, int]] = [
        (PROMPT, GREEDY, 30),
        ([90, 91, 92] * 3, SAMPLINGS["temperature"], 25),
        (list(range(100, 150)), SAMPLINGS["penalties"], 12),
        ([7], GREEDY, 30),
    ]
    plain = plain_run(kind)
    alone = [plain.alone(*row) for row in rows]
    constrained = plain.alone(PROMPT, GREEDY, 20, constraint=EvenOnly())
    run = Run(case(kind), cache=True)
    ids = []
    for row, pause in zip(rows, (7, 4, 3, 5), strict=True):
        ids.append(run.admit(*row))
        for _ in range(pause):
            run.step()
    # One gives way, and comes back with what it has made behind its prompt.
    made = run.generator.preempt(ids[3])
    assert made is not None
    assert run.tokens[ids[3]] == alone[3][: len(made)] == list(made)
    del run.live[ids[3]]
    run.finish()
    back = [*rows[3][0], *made]
    again = replace(
        run.requests[ids[3]], sequence_id=99, prompt=back, max_tokens=30 - len(made),
        generated_tokens=len(made),
    )  # fmt: skip
    run.requests[99], run.tokens[99], run.scores[99] = again, [], []
    run.live[99] = again.max_tokens
    run.generator.admit(again)
    run.finish()
    assert [run.tokens[sequence_id] for sequence_id in ids[:3]] == alone[:3]
    assert [*made, *run.tokens[99]] == alone[3]
    assert run.alone(PROMPT, GREEDY, 20, constraint=EvenOnly()) == constrained
    assert run.accepted > 0
    # With a recurrent state, rows draft together only if all of them can at the same time.
    assert run.shared > 0 or kind == "heads"


@pytest.mark.parametrize("kind", ["heads", "eagle", "dflash"])
def test_a_drafter_begins_behind_what_was_found(
    case: Callable[[str], Case], plain_run: Callable[[str], Run], kind: str
) -> None:
    plain, run = plain_run(kind), Run(case(kind), cache=True)
    first = plain.alone(PROMPT * 30, GREEDY, 10)
    assert run.alone(PROMPT * 30, GREEDY, 10) == first
    turn = [*PROMPT * 30, *first, 7, 8, 9]
    expected = plain.alone(turn, GREEDY, 30)
    run.drafted = run.accepted = 0
    row = run.admit(turn, GREEDY, 30)
    run.finish()
    assert run.tokens[row] == expected
    assert run.started[row].cached_tokens > 200
    assert run.acceptance > case(kind).least_acceptance


def test_answers_to_one_prompt_share_what_was_encoded_of_a_sound(
    case: Callable[[str], Case], plain_run: Callable[[str], Run]
) -> None:
    run, plain = Run(case("eagle")), plain_run("eagle")
    expected = [plain.alone(PROMPT, SequenceSampling(1.0, seed=seed), 20) for seed in (1, 2)]
    rows = [run.admit(PROMPT, SequenceSampling(1.0, seed=seed), 20) for seed in (1, 2)]
    run.finish()
    assert [run.tokens[row] for row in rows] == expected
    assert run.shared > 0


def test_a_row_of_many_guesses_again_when_it_is_one_of_few(
    case: Callable[[str], Case], plain_run: Callable[[str], Run]
) -> None:
    """Nobody captures while there are too many rows, and the drafters begin anew behind the gap."""
    run, plain = Run(case("eagle")), plain_run("eagle")
    expected = plain.alone(PROMPT, GREEDY, 60)
    row = run.admit(PROMPT, GREEDY, 60)
    for _ in range(8):
        run.step()
    others = [run.admit([start], GREEDY, 10) for start in (50, 60, 70)]
    for other in others:
        run.finish_row(other)
    before = run.accepted
    run.finish()
    assert run.tokens[row] == expected
    assert run.accepted > before > 0


def test_unlikely_guesses_are_kept_back(case: Callable[[str], Case]) -> None:
    spec = replace(case("eagle").speculation, assistant_confidence_threshold=0.999999)
    unsure = Run(replace(case("eagle"), speculation=spec))
    spec = replace(spec, assistant_confidence_threshold=0.01)
    sure = Run(replace(case("eagle"), speculation=spec))
    assert unsure.alone(PROMPT, GREEDY, 20) == sure.alone(PROMPT, GREEDY, 20)
    assert (unsure.drafted, sure.drafted > 0) == (0, True)


def test_what_is_heard_is_what_mlx_vlm_hands_out(case: Callable[[str], Case]) -> None:
    model = load_model(case("heads").target)
    language_model = model.language_model
    tokens = mx.array([PROMPT])
    theirs = language_model(tokens, capture_layer_ids=[1, 3], return_hidden=True).hidden_states
    layers = HiddenTap(layer_modules(language_model, [1, 3]))
    norm = HiddenTap([last_norm(language_model)])
    with layers.capturing() as of_layers, norm.capturing() as of_norm:
        language_model(tokens)
    assert mx.allclose(of_layers(), mx.concatenate(theirs[:2], axis=-1)).item()
    assert mx.allclose(of_norm(), theirs[2]).item()


def _refused(target: Path, draft: Path) -> str:
    spec = SpeculationSpec(draft_path=str(draft))
    with pytest.raises(OperationError) as caught:
        EngineRunner(spec_of(target, speculation=spec))
    assert caught.value.code in (ErrorCode.CONFIG_INVALID, ErrorCode.MODEL_SOURCE_INVALID)
    return caught.value.message


def test_a_drafter_that_does_not_fit_is_refused(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    target = case("eagle").target
    narrow = make_eagle(tmp_path / "narrow", target, target_hidden_size=32)
    assert "does not fit this model" in _refused(target, narrow)
    deep = make_eagle(tmp_path / "deep", target, eagle_aux_hidden_state_layer_ids=[1, 2, 9])
    assert "there is no layer 8: the model has 4" in _refused(target, deep)
    few = make_dflash(tmp_path / "few", vocab_size=100)
    assert "it knows 100 tokens, and the model 288" in _refused(case("dflash").target, few)
    foreign = Path(case("heads").speculation.draft_path or "")
    wide = make_tiny_model(tmp_path / "wide", "wide")
    assert "does not fit this model" in _refused(wide, foreign)
    (narrow / "model.safetensors").unlink()
    assert "No drafter can be loaded" in _refused(target, narrow)


def _found(folder: Path) -> str:
    generator: Any = EngineRunner(spec_of(folder, speculation=SpeculationSpec(auto=True))).generator
    return str(generator.speculation())


def test_what_is_beside_a_model_is_found(case: Callable[[str], Case], tmp_path: Path) -> None:
    target = case("eagle").target
    waits = "waits for text that repeats"
    assert _found(target) == f"prompt lookup: {waits}"
    folder = tmp_path / "with"
    shutil.copytree(target, folder)
    make_eagle(folder / "drafter", target)
    pays = "off while it does not pay"
    assert _found(folder) == f"drafter: {pays}"
    shutil.rmtree(folder / "drafter")
    # One that was made for another model is passed over.
    make_eagle(folder / "drafter", target, target_hidden_size=32)
    assert _found(folder) == f"prompt lookup: {waits}"
    assert _found(case("own heads").target) == f"own heads: {pays}"
    again = "its caches take tokens back only by computing others again"
    assert _found(make_tiny_model(tmp_path / "lfm2", "lfm2")) == f"off: {again}"


def test_what_is_found_changes_nothing(
    case: Callable[[str], Case], plain_run: Callable[[str], Run]
) -> None:
    found = EngineRunner(
        spec_of(
            case("own heads").target, max_decode_stall_s=10, speculation=SpeculationSpec(auto=True)
        )
    )
    row = found.admit(PROMPT, GREEDY, 120)
    found.finish_row(row)
    assert found.tokens[row] == plain_run("own heads").alone(PROMPT, GREEDY, 120)


def test_drafters_that_take_something_else_are_refused(
    case: Callable[[str], Case], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_assistant"}))
    assert "drafters of the type 'gemma4_assistant'" in _refused(case("eagle").target, tmp_path)


def test_heads_that_are_not_there_are_refused(case: Callable[[str], Case]) -> None:
    for kind in ("heads", "eagle"):
        with pytest.raises(OperationError, match="no heads for further tokens"):
            EngineRunner(spec_of(case(kind).target, speculation=SpeculationSpec(own_heads=True)))


def test_a_model_with_heads_is_no_folder_of_heads(case: Callable[[str], Case]) -> None:
    """It is a model that writes, and would be the draft model if its state could be taken back."""
    own = case("own heads").target
    assert "The draft model keeps a state" in _refused(own, own)
