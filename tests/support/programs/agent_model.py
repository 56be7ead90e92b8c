"""An engine that does what a plan in the user's message says (:mod:`agent_plan`), for programs
whose prompts and tools are their own.

It is a :class:`good_model.GoodModel` that thinks, takes pictures and renders its prompt with the
chat template of its options (``template``), in lmx's own renderer. What has no plan, or calls a
tool that is not offered, is a request beside the conversation: for its title, or for a summary.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import MediaKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    ReasoningMarkers,
    StepOutput,
)
from lmx.worker.media.values import MediaNeeds, Picture
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.templates.renderer import Renderer
from tests.support.fakes.call_writers import json_tools
from tests.support.fakes.good_model import GoodModel, Script, answer
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_tokenizer
from tests.support.programs.agent_plan import next_step

_THINKING: Final = ReasoningMarkers("<think>", "</think>")
_RENDER_S: Final = 60.0
_END: Final = 256


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """The factory that a spec names."""
    return AgentModel(spec.engine_options, spec.context_length or 200_000).engine()


@dataclass
class _Paced(Script):
    pace_s: float = 0.0


class AgentModel(GoodModel):
    """See the module's docstring."""

    def __init__(self, options: Mapping[str, Any], context_tokens: int) -> None:
        self._known = ModelFacts(
            context_tokens,
            frozenset({_END}),
            vocabulary_size=300,
            reasoning=_THINKING,
            tool_parser="json_tools",
            converses=True,
            grammars=True,
            media=MediaNeeds(frozenset({MediaKind.IMAGE})),
        )
        super().__init__(options)
        self._tokenizer = make_tokenizer(options.get("template", CHAT_TEMPLATE))
        self._compiler = ConstraintCompiler(
            self._tokenizer, 300, self._known.eos_token_ids, _THINKING, self._known.tool_parser
        )
        self._prompts = PromptEncoder(self._tokenizer, self._known, Renderer(_RENDER_S))
        abilities = self._prompts.abilities
        self._known = replace(self._known, template=abilities.facts)

    @property
    def facts(self) -> ModelFacts:
        return self._known

    def encode(self, source: PromptSource) -> EncodedPrompt:
        self._asked = source
        return self._prompts.encode(replace(source, media=(), media_params=()))

    def constrain(self, source: ConstraintSource) -> Any:
        maker = self._compiler.compile(source)
        text, pace_s = self._text(source)
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), _END]
        return ConstraintMaker(lambda: _Paced(tokens, maker() if maker else None, pace_s))

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        scripts = [row.script for row in self._good.values()]
        time.sleep(max((one.pace_s for one in scripts if isinstance(one, _Paced)), default=0.0))
        return super().step(interrupted)

    def _text(self, source: ConstraintSource) -> tuple[str, float]:
        asked = self._asked
        messages = asked.messages or ()
        step = next_step(messages)
        use = asked.tool_use
        offered = {tool["function"]["name"] for tool in (use.known if use else ())}
        if step is None or ("tool" in step and step["tool"] not in offered):
            if source.structure is not None:
                return answer(messages, use, source.structure), 0.0
            return "<summary>What was asked, in short.</summary>", 0.0
        if "tool" in step:
            return json_tools([(step["tool"], step["arguments"])]), 0.0
        sizes = [
            "x".join(map(str, media.pixels.shape[1::-1]))
            for media in asked.media
            if isinstance(media, Picture)
        ]
        said = step["say"].replace("{pictures}", " and ".join(sizes))
        return (f"<think>{step['think']}</think>" if step["think"] else "") + said, step["pace_s"]
