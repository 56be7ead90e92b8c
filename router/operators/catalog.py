"""GET /v1/models, /v1/models/{id}, /v1/chat/models, /api/v0/models: all models, loaded or not.

Anthropic's clients and OpenAI's ask on the same path. Anthropic's say so in a header. Those of LM
Studio have a path of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from aiohttp import web

from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import MediaKind, ModelKind, ModelState
from lmx.router.http.endpoint import ANTHROPIC_VERSION, is_of_anthropic
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, PageEnds, add_vary, json_value, page_ends
from lmx.router.rendering.envelope import utc_text
from lmx.router.schema.requests.operators import ModelsQuery
from lmx.router.schema.validation import invalid, short, validated
from lmx.router.services import SERVICES, listed_for
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.routing import candidates, route_models, routes_by_leader

_INFILL: Final = "infill"
_TOOL_OUTPUT_TOKENS: Final = 10_000
"""This much of a tool's output is what Codex keeps for models that it knows."""

_Modality = Literal["text", "image", "audio", "video"]

_CODEX_TAKES: Final[tuple[Literal["image", "audio"], ...]] = ("image", "audio")
"""What Codex knows besides text: an entry with anything else makes it refuse the whole list."""

_CODEX_INSTRUCTIONS: Final = """\
You are a coding agent in Codex, a program in the user's terminal. You and the user work on the \
files of one folder.

- Look before you change: find the files that matter with `rg` or `ls`, and read them.
- Use the tools for what you do; do not print commands or file contents for the user to run or copy.
- Change what the task needs, in the style of the code that is there, and nothing else. Leave \
changes that you did not make as they are.
- Run the tests, or the program, after a change. If something fails, read why and fix it.
- Work until the task is done, and ask only if you can't decide without the user. Never claim \
what you have not seen.
- End with a short summary: what you changed, in which files, and how you checked it.

A patch for `apply_patch` names each file and shows the lines around a change:

*** Begin Patch
*** Update File: src/app.py
@@ def greet():
-    print("Hi")
+    print("Hello")
     return 0
*** Add File: notes.txt
+The first line of a new file.
*** Delete File: old.txt
*** End Patch

Each line of a hunk begins with a space (it stays), `-` (it goes) or `+` (it is new). Paths are \
relative to the folder.
"""
"""The system prompt that Codex sends to a model of this catalog."""


class ChatTemplateInfo(Answer):
    """What a model's chat template does not take as it is. Both are empty until it was loaded."""

    fitted: list[str]
    """The shapes of conversations that lmx fits to it (``later_system``: a system message in the
    middle). No text is lost."""
    refused: list[str]
    """The shapes that it refuses, or drops a text of, whatever is done."""


class Architecture(Answer):
    """What goes into a model and comes out of it, by OpenRouter's names."""

    input_modalities: list[_Modality]
    """The same as `modalities`."""
    output_modalities: list[Literal["text", "embeddings", "audio"]]
    """What it answers with. There is none for a model that ranks documents."""


class ModelObject(Answer):
    """A model as OpenAI shows it, with lmx's fields after the first four."""

    id: str
    object: Literal["model"]
    created: int
    """Seconds since 1970: when its files were written, else when lmx was started."""
    owned_by: str
    """The owner of its repository, or the machine that has it, where that is a peer."""
    parent: str | None
    """The model that it is an adapter of; null if it is no adapter."""
    state: str
    """The state of its worker where it has one, else what becomes of it."""
    aliases: list[str]
    context_length: int | None
    """The tokens that its context may have. Null until it is known: of a source that was never
    fetched there are no files to read it from."""
    modalities: list[_Modality]
    """What requests may contain: ``text``, ``image``, ``audio``, ``video``. Only ``text`` until the
    files of the model are known."""
    architecture: Architecture
    """The same, and what comes out, for clients that look for it as OpenRouter has it."""
    kind: str | None
    """What the model is for. Null until it is known."""
    capabilities: list[str]
    chat_template: ChatTemplateInfo
    """How conversations are fitted to its chat template."""
    reasoning_efforts: list[str]
    """The names of the reasoning efforts that its template distinguishes, the least first; another
    one is replaced by the nearest. Empty until it was loaded, and where its template knows no
    efforts."""


class ReasoningLevel(Answer):
    """An effort that a model supports."""

    effort: str
    description: str


class TruncationPolicy(Answer):
    """How much of a tool's output an agent keeps."""

    mode: Literal["bytes", "tokens"]
    limit: int


class CatalogEntry(Answer):
    """A model in the form of Codex's catalog of models."""

    slug: str
    """A name that requests may have: an id, an alias, or a route that leads to the model now."""
    display_name: str
    """The same."""
    description: str | None
    default_reasoning_level: str | None
    supported_reasoning_levels: list[ReasoningLevel]
    """The efforts that the model's template distinguishes."""
    shell_type: Literal["shell_command"]
    visibility: Literal["list", "hide"]
    """Ids are listed in its menu; other names are known, and hidden."""
    supported_in_api: Literal[True]
    priority: int
    """Its place in the list, from 0."""
    upgrade: None
    availability_nux: None
    base_instructions: str
    """The system prompt that Codex sends. It refuses a list with an entry that has none."""
    supports_reasoning_summaries: bool
    support_verbosity: Literal[False]
    default_verbosity: None
    apply_patch_tool_type: Literal["freeform"]
    """Patches are the input of a custom tool with a grammar."""
    truncation_policy: TruncationPolicy
    supports_parallel_tool_calls: Literal[True]
    context_window: int | None
    """The tokens that its context may have. Null until it is known."""
    experimental_supported_tools: list[str]
    input_modalities: list[Literal["text", "image", "audio"]]
    """It refuses a list with any other value, such as `video`."""


class ModelList(Answer):
    """GET /v1/models: every model, loaded or not."""

    object: Literal["list"]
    data: list[ModelObject]
    models: list[CatalogEntry]
    """Those that answer conversations, in the form that Codex reads."""


class AnthropicModel(Answer):
    """A model as Anthropic shows it."""

    type: Literal["model"]
    id: str
    display_name: str
    """The same as the id."""
    created_at: str
    """When its files were written, else when lmx was started, as in RFC 3339."""
    lifecycle: Literal["active"]
    """Always the same."""
    max_input_tokens: int | None
    """The tokens that its context may have. Null until it is known."""
    max_tokens: int | None
    """The same: prompt and answer share the context."""


class AnthropicModelList(PageEnds):
    """GET /v1/models for Anthropic's clients: every model that answers messages, loaded or not."""

    data: list[AnthropicModel]


class CapabilityModelSpec(Answer):
    """One of GET /v1/chat/models, as kiapi has it."""

    name: str
    family: str
    domain: Literal["chat"]
    aliases: list[str]
    default: bool
    """Whether it answers requests that name no model."""
    features: list[str]
    """What it takes and can do."""


class LmStudioModel(Answer):
    """A model as LM Studio shows it."""

    id: str
    object: Literal["model"]
    type: Literal["llm", "vlm", "embeddings"]
    """`vlm` is a model that takes images."""
    publisher: str
    arch: str | None
    """The name of its architecture. Null until its files are known."""
    compatibility_type: Literal["mlx"]
    quantization: None
    """It is not reported."""
    state: Literal["loaded", "loading", "not-loaded"]
    max_context_length: int | None
    """The tokens that its context may have. Null until it is known."""
    loaded_context_length: int | None
    """The same, of a model that is loaded; else null."""
    capabilities: list[Literal["tool_use", "vision"]]


class LmStudioModelList(Answer):
    """GET /api/v0/models: the models that chat and those that make embeddings, loaded or not."""

    object: Literal["list"]
    data: list[LmStudioModel]


async def list_models(request: web.Request) -> web.Response:
    """Return every model."""
    directory = await listed_for(request)
    of_lmx = await listed_for(request, openai=False)
    return _in_form(
        request,
        lambda: anthropic_list(of_lmx.models, validated(ModelsQuery, dict(request.query))),
        lambda: ModelList(
            object="list",
            data=[model_object(model) for model in directory.models],
            models=codex_catalog(of_lmx),
        ),
    )


async def get_model(request: web.Request) -> web.Response:
    """Return one model, by id, alias or source; or the model that a route stands for now; or that
    of a certain machine (``MODEL@MACHINE``). Ids contain slashes."""
    directory, name = await listed_for(request), request.match_info["id"]
    model = None
    if "@" in name and not directory.knows(name):
        model = request.app[SERVICES].peers.of_machine(name, request[CONTEXT].grant)
    model = model or candidates(directory, name, None)[0]
    return _in_form(request, lambda: anthropic_model(model), lambda: model_object(model))


def _in_form(
    request: web.Request, anthropic: Callable[[], Answer], openai: Callable[[], Answer]
) -> web.Response:
    """Return an answer in the form of the family whose client asks."""
    response = json_value(anthropic() if is_of_anthropic(request) else openai())
    add_vary(response, ANTHROPIC_VERSION)
    return response


async def list_chat_models(request: web.Request) -> web.Response:
    """Return the chat models in the form of kiapi."""
    directory = await listed_for(request)
    routes = routes_by_leader(directory)
    return json_value(
        [
            chat_model_spec(directory, routes, model)
            for model in directory.models
            if model.kind in (ModelKind.CHAT, None)
        ]
    )


async def list_lm_studio_models(request: web.Request) -> web.Response:
    """Return the models in the form of LM Studio's clients."""
    models = (await listed_for(request)).models
    shown = [
        lm_studio_model(model)
        for model in models
        if model.kind in (ModelKind.CHAT, ModelKind.EMBEDDING, None)
    ]
    return json_value(LmStudioModelList(object="list", data=shown))


def model_object(model: ModelView) -> ModelObject:
    """Return a model in the form of OpenAI's clients."""
    return ModelObject(
        id=model.model_id,
        object="model",
        created=model.created_s,
        owned_by=_owner(model.source),
        parent=model.base,
        state=model.state.value,
        aliases=list(model.aliases),
        context_length=model.context_length,
        modalities=_modalities(model),
        architecture=Architecture(
            input_modalities=_modalities(model), output_modalities=_output(model.kind)
        ),
        kind=None if model.kind is None else model.kind.value,
        capabilities=_capabilities(model),
        reasoning_efforts=list(model.template.efforts),
        chat_template=ChatTemplateInfo(
            fitted=list(model.template.fitted), refused=list(model.template.refused)
        ),
    )


def codex_catalog(directory: Directory) -> list[CatalogEntry]:
    """Return the models that answer conversations, in the form of Codex: once for each name that a
    request may have, because Codex looks for the name in its configuration and takes nothing else
    for it. Only ids are for its menu."""
    chatting = [model for model in directory.models if model.kind in (ModelKind.CHAT, None)]
    routes = routes_by_leader(directory)
    return [
        _catalog_entry(name, model, place, _context_length(directory, name, model))
        for place, model in enumerate(chatting)
        for name in (model.model_id, *model.aliases, *routes.get(model.model_id, ()))
    ]


def _context_length(directory: Directory, name: str, model: ModelView) -> int | None:
    """Return the context that a request for ``name`` has at least: another of a route's models may
    answer the next one."""
    if directory.knows(name):
        return model.context_length
    listed = route_models(directory, name) or (model,)
    return min((one.context_length for one in listed if one.context_length), default=None)


def _catalog_entry(
    name: str, model: ModelView, place: int, context_length: int | None
) -> CatalogEntry:
    return CatalogEntry(
        slug=name,
        display_name=name,
        description=None,
        default_reasoning_level=None,
        supported_reasoning_levels=[
            ReasoningLevel(effort=effort, description=f"{effort.capitalize()} effort")
            for effort in model.template.efforts
        ],
        shell_type="shell_command",
        visibility="list" if name == model.model_id else "hide",
        supported_in_api=True,
        priority=place,
        upgrade=None,
        availability_nux=None,
        base_instructions=_CODEX_INSTRUCTIONS,
        supports_reasoning_summaries="reasoning" in model.capabilities,
        support_verbosity=False,
        default_verbosity=None,
        apply_patch_tool_type="freeform",
        truncation_policy=TruncationPolicy(mode="tokens", limit=_TOOL_OUTPUT_TOKENS),
        supports_parallel_tool_calls=True,
        context_window=context_length,
        experimental_supported_tools=[],
        input_modalities=[
            "text",
            *(kind for kind in _CODEX_TAKES if MediaKind(kind) in (model.media or ())),
        ],
    )


def anthropic_list(models: Sequence[ModelView], query: ModelsQuery) -> AnthropicModelList:
    """Return a page of the models that answer messages, in the form of Anthropic's clients. Raises
    :class:`RequestError` if the page has no such place."""
    listed = [anthropic_model(model) for model in models if model.kind in (ModelKind.CHAT, None)]
    ids = [model["id"] for model in listed]
    begin = 0 if query.after_id is None else _place(ids, query.after_id, "after_id") + 1
    end = len(ids) if query.before_id is None else _place(ids, query.before_id, "before_id")
    limit = len(ids) if query.limit is None else query.limit
    if query.before_id is None:
        end = min(end, begin + limit)
        has_more = end < len(ids)
    else:
        has_more = end - begin > limit
        begin = max(begin, end - limit)
    page = listed[begin:end]
    return {"data": page, **page_ends(ids[begin:end], has_more=has_more)}


def _place(ids: Sequence[str], wanted: str, param: str) -> int:
    if wanted not in ids:
        raise invalid(param, f"is not the id of one of the models: {short(wanted)}.")
    return ids.index(wanted)


def anthropic_model(model: ModelView) -> AnthropicModel:
    """Return a model in the form of Anthropic's clients."""
    return AnthropicModel(
        type="model",
        id=model.model_id,
        display_name=model.model_id,
        created_at=utc_text(model.created_s),
        lifecycle="active",
        max_input_tokens=model.context_length,
        max_tokens=model.context_length,
    )


def lm_studio_model(model: ModelView) -> LmStudioModel:
    """Return a model in the form of LM Studio's clients. A chat model that was never loaded is
    taken to take tools, as nearly all do."""
    chats, sees = model.kind is not ModelKind.EMBEDDING, MediaKind.IMAGE in (model.media or ())
    can: list[Literal["tool_use", "vision"]] = ["vision"] if sees else []
    if chats and "tools" in (model.capabilities or ("tools",)):
        can.insert(0, "tool_use")
    loads = model.state in (ModelState.STARTING, ModelState.LOADING)
    return LmStudioModel(
        id=model.model_id,
        object="model",
        type=("vlm" if sees else "llm") if chats else "embeddings",
        publisher=_owner(model.source),
        arch=model.family,
        compatibility_type="mlx",
        quantization=None,
        state="loaded" if model.state.loaded else "loading" if loads else "not-loaded",
        max_context_length=model.context_length,
        loaded_context_length=model.context_length if model.state.loaded else None,
        capabilities=can,
    )


def chat_model_spec(
    directory: Directory, routes: Mapping[str, Sequence[str]], model: ModelView
) -> CapabilityModelSpec:
    """Return a model in the form of kiapi's clients. Its aliases include the routes that stand for
    it now."""
    return CapabilityModelSpec(
        name=model.model_id,
        family=model.family or _family(model.model_id),
        domain="chat",
        aliases=[*model.aliases, *routes.get(model.model_id, ())],
        default=model is directory.default(),
        features=[*_modalities(model), *model.capabilities],
    )


def _output(kind: ModelKind | None) -> list[Literal["text", "embeddings", "audio"]]:
    if kind is ModelKind.RERANK:
        return []
    if kind is ModelKind.SPEECH:
        return ["audio"]
    return ["embeddings"] if kind is ModelKind.EMBEDDING else ["text"]


def _modalities(model: ModelView) -> list[_Modality]:
    """Return what requests to a model may contain. Every model takes text but those that transcribe
    speech."""
    if model.kind is ModelKind.TRANSCRIPTION:
        return [MediaKind.AUDIO.value]
    return ["text", *(kind.value for kind in model.media or ())]


def _capabilities(model: ModelView) -> list[str]:
    if model.kind in (ModelKind.TRANSCRIPTION, ModelKind.SPEECH):
        return [model.kind.value]
    return list(model.capabilities) or [_INFILL] * bool(model.infills)


def _family(model_id: str) -> str:
    """Return the family as most ids begin with it, for a model whose files are not known yet."""
    return model_id.rpartition("/")[2].partition("-")[0].lower()


def _owner(source: str) -> str:
    # The owner of a hub repository. A path on this machine's disk is private.
    owner, slash, name = source.partition("/")
    is_repository = slash and owner and name and "/" not in name and owner[0] not in ".~"
    return owner if is_repository else "lmx"
