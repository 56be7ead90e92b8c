"""Every route of the API, as one table."""

from collections.abc import Iterator
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.ranks import RankStarted
from lmx.protocol.states import ModelKind
from lmx.router.console import api_page, files, front, markdown
from lmx.router.http.api_family import ANTHROPIC, OLLAMA, RESPONSES
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.responses import Succeeded
from lmx.router.inference import (
    audio,
    chat,
    completions,
    embeddings,
    infill,
    messages,
    moderations,
    ollama,
    own_usage,
    scoring,
    speech,
    tokenize,
)
from lmx.router.inference import files as client_files
from lmx.router.inference.batches import anthropic as message_batches
from lmx.router.inference.batches import openai as batches
from lmx.router.inference.responses import compaction, conversations, creation, stored, websocket
from lmx.router.operators import batches as all_batches
from lmx.router.operators import (
    catalog,
    config,
    downloads,
    engines,
    events,
    health,
    jobs,
    keys,
    logs,
    metrics,
    models,
    pairing,
    peers,
    plan,
    rank_probe,
    ranks,
    status,
    usage,
    version,
    workers,
)
from lmx.router.operators import ollama as ollama_models
from lmx.router.operators.live import stream as live
from lmx.router.peers.machine import MachineState
from lmx.router.rendering import transcripts
from lmx.router.rendering.anthropic import AnthropicMessage, MessageEvent
from lmx.router.rendering.chat import ChatCompletion, ChatCompletionChunk
from lmx.router.rendering.infill import InfillAnswer
from lmx.router.rendering.ollama import OllamaChatAnswer, OllamaGenerateAnswer
from lmx.router.rendering.responses.compaction import CompactedResponse
from lmx.router.rendering.responses.events import ResponseStreamEvent
from lmx.router.rendering.responses.state import ResponseObject
from lmx.router.rendering.text import TextCompletion, TextCompletionChunk
from lmx.router.schema.openapi.document import openapi_document
from lmx.router.schema.requests import audio as audio_requests
from lmx.router.schema.requests import batches as batch_requests
from lmx.router.schema.requests import conversations as conversation_requests
from lmx.router.schema.requests import operators as requests
from lmx.router.schema.requests import tasks as task_requests
from lmx.router.schema.requests.anthropic.messages import CountTokensRequest, MessagesRequest
from lmx.router.schema.requests.chat import ChatRequest
from lmx.router.schema.requests.completions import CompletionRequest
from lmx.router.schema.requests.console import MarkdownRequest
from lmx.router.schema.requests.files import FileRequest, FilesQuery
from lmx.router.schema.requests.infill import InfillRequest
from lmx.router.schema.requests.keys import KeyRequest, RotateRequest
from lmx.router.schema.requests.ollama.chat import OllamaChatRequest
from lmx.router.schema.requests.ollama.common import OllamaPullRequest, OllamaShowRequest
from lmx.router.schema.requests.ollama.embed import OllamaEmbeddingsRequest, OllamaEmbedRequest
from lmx.router.schema.requests.ollama.generate import OllamaGenerateRequest
from lmx.router.schema.requests.pairing import PairHelloRequest, PairProofRequest
from lmx.router.schema.requests.ranks import RankRequest
from lmx.router.schema.requests.responses import responses as response_requests
from lmx.router.schema.requests.responses.compaction import CompactRequest
from lmx.router.usage.tables import FiguresAnswer, UsageAnswer

# The rows of a table: the formatter would give each argument a line.
# fmt: off


def _administration() -> Iterator[Endpoint]:
    """Yield Opta-LMX's routes of /admin, except for the metrics."""
    use, see, tag = Access.ADMIN, Access.OPERATOR, "Administration"
    yield Endpoint("GET", "/admin/health", status.admin_health, Access.OPEN, "Health",
        "Whether all is well", answer=status.HealthAnswer, degraded_status=503, quiet=True)
    yield Endpoint("GET", "/admin/status", status.admin_status, see, tag, "Show how lmx is",
        answer=status.StatusAnswer)
    yield Endpoint("GET", "/admin/status/full", status.admin_full_status, see, tag,
        "Show everything, as `lmx status --json`", answer=dict[str, Any], quiet=True)
    yield Endpoint("GET", "/admin/memory", status.admin_memory, see, tag, "Show who has the memory",
        answer=status.MemoryAnswer)
    yield Endpoint("POST", "/admin/config/reload", config.reload_config, use, tag,
        "Read the configuration again", answer=config.ReloadAnswer,
        errors=(ErrorCode.CONFIG_INVALID,))
    yield Endpoint("GET", "/admin/models", status.admin_models, see, tag,
        "Show all models, loaded or not", answer=status.ModelsAnswer)
    yield Endpoint("POST", "/admin/models/load", models.load_model, use, tag,
        "Load a model, and wait", request=requests.LoadRequest,
        answer=models.LoadAnswer | models.CommandAnswer,
        errors=models.LOAD_ERRORS)
    yield Endpoint("POST", "/admin/models/unload", models.unload_model, use, tag,
        "Unload a model, and wait", request=requests.UnloadRequest,
        answer=models.UnloadAnswer | models.CommandAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_LOADED))
    yield Endpoint("POST", "/admin/models/restart", models.restart_model, use, tag,
        "End a model's process after its requests, and load it again",
        request=requests.ModelRequest, answer=models.CommandAnswer, errors=models.LOAD_ERRORS)
    yield Endpoint("POST", "/admin/models/reset", models.reset_model, use, tag,
        "Forget a model's failures", request=requests.ModelRequest, answer=models.CommandAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_UNLOADED))
    yield Endpoint("POST", "/admin/models/drain", models.drain_model, use, tag,
        "Unload a model after its requests, and hold it unloaded", request=requests.ModelRequest,
        answer=models.CommandAnswer, errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_UNLOADED))
    yield Endpoint("POST", "/admin/models/pin", models.pin_model, use, tag,
        "Pin a model, or unpin it", request=requests.PinRequest, answer=models.CommandAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_UNLOADED))
    yield Endpoint("GET", "/admin/models/plan", plan.plan_load, see, tag,
        "Show what a load would need, and what would follow", query=requests.PlanQuery,
        answer=plan.PlanAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_SOURCE_INVALID, ErrorCode.QUEUE_FULL))
    # Quiet: each peer asks every second.
    yield Endpoint("GET", "/admin/peer", peers.own_state, Access.PEER, "Peers",
        "Show how this machine is, to its peers", query=requests.PeerQuery, answer=MachineState,
        quiet=True)
    yield Endpoint("POST", "/admin/drain", peers.drain_machine, use, "Peers",
        "Let no model of this machine take requests", request=requests.DrainRequest,
        answer=Succeeded)
    yield Endpoint("GET", "/admin/peers", peers.list_peers, see, "Peers",
        "List the machines that answer for this one", answer=peers.PeersAnswer, quiet=True)
    yield from _files()


def _files() -> Iterator[Endpoint]:
    use, see, path = Access.ADMIN, Access.OPERATOR, "/admin/models/download"
    tag = "Downloads"
    yield Endpoint("GET", "/admin/models/available", downloads.available_models, see, tag,
        "List the models on this machine's disk", answer=list[downloads.AvailableAnswer])
    yield Endpoint("POST", path, downloads.start_download, use, tag,
        "Download a model from the hub", request=requests.DownloadRequest,
        answer=downloads.DownloadAnswer, errors=downloads.DOWNLOAD_ERRORS)
    yield Endpoint("GET", path, downloads.list_downloads, see, tag, "List the downloads",
        answer=downloads.DownloadsAnswer)
    yield Endpoint("GET", f"{path}/{{download_id}}", downloads.get_download, see, tag,
        "Show a download", answer=downloads.DownloadAnswer)
    # Quiet: a follower must not hold up the end of a router.
    yield Endpoint("GET", f"{path}/{{download_id}}/progress", downloads.download_progress, see, tag,
        "Follow a download", streams=True, event=downloads.DownloadProgress, quiet=True)
    yield Endpoint("DELETE", f"{path}/{{download_id}}", downloads.cancel_download, use, tag,
        "Cancel a download", answer=downloads.DownloadAnswer)
    # This comes after the one above, because its path also matches that one's.
    yield Endpoint("DELETE", "/admin/models/{id:.+}", models.delete_model, use, tag,
        "Delete a model's files", query=requests.DeleteQuery, answer=models.DeleteAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_LOADED, ErrorCode.NOT_DELETABLE))


def _engines() -> Iterator[Endpoint]:
    """Yield Kolosal's routes about engines."""
    use, see, tag = Access.ADMIN, Access.OPERATOR, "Engines"
    missing = (ErrorCode.MODEL_NOT_FOUND,)
    yield Endpoint("GET", "/engines", engines.list_engines, see, tag, "List the engines",
        answer=engines.EnginesAnswer)
    yield Endpoint("POST", "/engines", engines.add_engine, use, tag, "Add a model, and load it",
        request=requests.EngineRequest, answer=engines.EngineAnswer, status=201,
        errors=(ErrorCode.MODEL_EXISTS, *models.LOAD_ERRORS))
    yield Endpoint("GET", "/engines/{id:.+}/status", engines.engine_status, see, tag,
        "Show an engine", answer=engines.EngineStatusAnswer, errors=missing)
    yield Endpoint("DELETE", "/engines/{id:.+}", engines.remove_engine, use, tag,
        "Remove an engine that was added", answer=engines.EngineRemoved,
        errors=(*missing, ErrorCode.MODEL_CONFIGURED))


_PREFIXES: Final = ("/v1", "/v3")
"""OpenAI's prefix, and OpenVINO Model Server's name for the same routes."""


def _inference() -> Iterator[Endpoint]:
    use = Access.INFERENCE
    for prefix in _PREFIXES:
        yield Endpoint("POST", f"{prefix}/chat/completions", chat.chat_completions, use, "Chat",
            "Answer a conversation", request=ChatRequest, answer=ChatCompletion, streams=True,
            event=ChatCompletionChunk, models=ModelKind.CHAT)
        yield Endpoint("POST", f"{prefix}/completions", completions.completions, use, "Completions",
            "Complete one or more prompts", request=CompletionRequest, answer=TextCompletion,
            streams=True, event=TextCompletionChunk, models=ModelKind.CHAT)
        yield Endpoint("POST", f"{prefix}/embeddings", embeddings.embeddings, use, "Embeddings",
            "Embed texts", request=task_requests.EmbeddingRequest, answer=embeddings.EmbeddingList,
            models=ModelKind.EMBEDDING)
        yield Endpoint("GET", f"{prefix}/models", catalog.list_models, use, "Models",
            "List the models", query=requests.ModelsQuery,
            answer=catalog.ModelList | catalog.AnthropicModelList, shared=True)
        yield Endpoint("GET", f"{prefix}/models/{{id:.+}}", catalog.get_model, use, "Models",
            "Show one model", answer=catalog.ModelObject | catalog.AnthropicModel, shared=True)
    yield Endpoint("POST", "/infill", infill.infill, use, "Completions",
        "Fill a gap in a text, by llama.cpp's API", request=InfillRequest, answer=InfillAnswer,
        streams=True, event=InfillAnswer, models=ModelKind.CHAT)
    yield Endpoint("GET", "/v1/usage", own_usage.own_usage, use, "Keys",
        "Show what the key has used, and may use", query=requests.OwnUsageQuery,
        answer=own_usage.OwnUsage, errors=(ErrorCode.USAGE_UNAVAILABLE,), shared=True, quiet=True)
    yield Endpoint("GET", "/v1/chat/models", catalog.list_chat_models, use, "Models",
        "List the models that chat", answer=list[catalog.CapabilityModelSpec])
    yield Endpoint("GET", "/api/v0/models", catalog.list_lm_studio_models, use, "Models",
        "List the models, by LM Studio's API", answer=catalog.LmStudioModelList)
    yield Endpoint("POST", "/v1/audio/transcriptions", audio.transcriptions, use, "Audio",
        "Transcribe speech", form=audio_requests.TranscriptionRequest,
        answer=transcripts.Transcription | transcripts.VerboseTranscription,
        also=("text/plain",), streams=True,
        event=transcripts.TranscriptDelta | transcripts.TranscriptDone,
        models=ModelKind.TRANSCRIPTION)
    yield Endpoint("POST", "/v1/audio/translations", audio.translations, use, "Audio",
        "Transcribe speech into English", form=audio_requests.TranslationRequest,
        answer=transcripts.Transcription | transcripts.VerboseTranscription, also=("text/plain",),
        models=ModelKind.TRANSCRIPTION)
    yield Endpoint("POST", "/v1/audio/speech", speech.speech, use, "Audio", "Read a text aloud",
        request=audio_requests.SpeechRequest, also=tuple(speech.MEDIA_TYPES.values()), streams=True,
        event=speech.SpeechDelta | speech.SpeechDone, models=ModelKind.SPEECH)
    yield Endpoint("GET", "/v1/audio/voices", speech.voices, use, "Audio",
        "List the voices of all models", answer=speech.VoiceList)
    yield Endpoint("POST", "/v1/moderations", moderations.moderations, use, "Moderations",
        "Not supported: a 404", errors=(ErrorCode.NOT_FOUND,))
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        yield Endpoint("POST", path, scoring.rerank, use, "Rerank", "Sort documents by a query",
            request=task_requests.RerankRequest, answer=scoring.Ranking, models=ModelKind.RERANK)
    for path in ("/score", "/v1/score"):
        yield Endpoint("POST", path, scoring.score, use, "Rerank", "Score pairs of texts",
            request=task_requests.ScoreRequest, answer=scoring.ScoreList, models=ModelKind.RERANK)
    yield Endpoint("GET", "/tokenizer_info", tokenize.tokenizer_info, use, "Tokens",
        "Show a model's tokenizer", query=task_requests.TokenizerInfoQuery, answer=dict[str, Any],
        asks_worker=True,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_LOADING, ErrorCode.MODEL_LOAD_FAILED,
            ErrorCode.QUEUE_FULL, ErrorCode.WORKER_CRASHED, ErrorCode.WORKER_LOST))
    yield Endpoint("POST", "/tokenize", tokenize.tokenize, use, "Tokens", "Turn text into tokens",
        request=task_requests.TokenizeRequest, answer=tokenize.Tokens)
    yield Endpoint("POST", "/detokenize", tokenize.detokenize, use, "Tokens",
        "Turn tokens into text", request=task_requests.DetokenizeRequest,
        answer=tokenize.TokensText)


_CHAINED: Final = (ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND, ErrorCode.JOBS_UNAVAILABLE)
"""What becomes of a request that continues a response which does not exist."""




def _messages() -> Iterator[Endpoint]:
    """Yield the routes of Anthropic's Messages API."""
    use = Access.INFERENCE
    yield Endpoint("POST", "/v1/messages", messages.messages, use, "Messages",
        "Answer a conversation, by Anthropic's API", request=MessagesRequest,
        answer=AnthropicMessage, streams=True, event=MessageEvent, family=ANTHROPIC,
        models=ModelKind.CHAT)
    yield Endpoint("POST", "/v1/messages/count_tokens", messages.count_tokens, use, "Messages",
        "Count the tokens of a conversation, by Anthropic's API", request=CountTokensRequest,
        answer=messages.TokenCount, family=ANTHROPIC)


def _responses() -> Iterator[Endpoint]:
    """Yield the routes of OpenAI's Responses API."""
    use, tag, path = Access.INFERENCE, "Responses", "/v1/responses"
    missing = (ErrorCode.JOBS_UNAVAILABLE, ErrorCode.REQUEST_TOO_LARGE)
    yield Endpoint("POST", path, creation.responses, use, tag,
        "Answer a conversation, by OpenAI's Responses API",
        request=response_requests.ResponsesRequest,
        answer=ResponseObject, streams=True, event=ResponseStreamEvent,
        errors=(*_CHAINED, ErrorCode.NOT_FOUND), family=RESPONSES, models=ModelKind.CHAT)
    # Quiet: what is counted are the responses that come over it.
    yield Endpoint("GET", path, websocket.responses_socket, use, tag,
        "Answer conversations over a WebSocket", streams=True, event=ResponseStreamEvent,
        status=101, errors=(ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.QUEUE_FULL), family=RESPONSES,
        quiet=True)
    yield Endpoint("POST", f"{path}/input_tokens", creation.input_tokens, use, tag,
        "Count the tokens of a response's prompt", request=response_requests.InputTokensRequest,
        answer=creation.InputTokenCount, errors=(*_CHAINED, ErrorCode.NOT_FOUND),
        models=ModelKind.CHAT)
    yield Endpoint("POST", f"{path}/compact", compaction.compact, use, tag,
        "Make a conversation shorter", request=CompactRequest, answer=CompactedResponse,
        errors=(*_CHAINED, ErrorCode.NOT_FOUND), family=RESPONSES, here_only=True,
        models=ModelKind.CHAT)
    yield Endpoint("GET", f"{path}/{{id}}", stored.get_response, use, tag,
        "Show a response that is kept", query=response_requests.RetrieveQuery,
        answer=ResponseObject, streams=True,
        event=ResponseStreamEvent, errors=missing, family=RESPONSES)
    yield Endpoint("DELETE", f"{path}/{{id}}", stored.delete_response, use, tag,
        "Remove a response", answer=stored.DeletedResponse,
        errors=(ErrorCode.JOB_RUNS_ELSEWHERE, *missing))
    yield Endpoint("POST", f"{path}/{{id}}/cancel", stored.cancel_response, use, tag,
        "Cancel a response", answer=ResponseObject, errors=(ErrorCode.JOB_RUNS_ELSEWHERE, *missing))
    yield Endpoint("GET", f"{path}/{{id}}/input_items", stored.input_items, use, tag,
        "List the items of a response's input", query=response_requests.InputItemsQuery,
        answer=stored.ItemList, errors=missing)


def _conversations() -> Iterator[Endpoint]:
    """Yield the routes of OpenAI's conversations."""
    use, tag, path = Access.INFERENCE, "Conversations", "/v1/conversations"
    one, item = f"{path}/{{id}}", f"{path}/{{id}}/items/{{item_id}}"
    broken, missing = ErrorCode.JOBS_UNAVAILABLE, ErrorCode.NOT_FOUND
    made, items = conversations.ConversationObject, stored.ItemList
    yield Endpoint("POST", path, conversations.create_conversation, use, tag, "Make a conversation",
        request=conversation_requests.ConversationRequest, answer=made, works=False,
        errors=(broken, missing))
    yield Endpoint("GET", one, conversations.get_conversation, use, tag, "Show a conversation",
        answer=made, errors=(broken, missing))
    yield Endpoint("POST", one, conversations.update_conversation, use, tag,
        "Give a conversation other metadata", request=conversation_requests.ConversationUpdate,
        answer=made, works=False, errors=(broken, missing))
    yield Endpoint("DELETE", one, conversations.delete_conversation, use, tag,
        "Remove a conversation", answer=conversations.DeletedConversation, errors=(broken, missing))
    yield Endpoint("POST", f"{one}/items", conversations.add_items, use, tag,
        "Add items to a conversation", request=conversation_requests.ConversationItemsRequest,
        answer=items, works=False, errors=(broken, missing))
    yield Endpoint("GET", f"{one}/items", conversations.list_items, use, tag,
        "List the items of a conversation", query=conversation_requests.ConversationItemsQuery,
        answer=items, errors=(broken, missing))
    yield Endpoint("GET", item, conversations.get_item, use, tag, "Show an item of a conversation",
        answer=dict[str, Any], errors=(broken, missing))
    yield Endpoint("DELETE", item, conversations.delete_item, use, tag,
        "Remove an item of a conversation", answer=made, errors=(broken, missing))


def _files_of_clients() -> Iterator[Endpoint]:
    use, tag, path = Access.INFERENCE, "Files", "/v1/files"
    missing = (ErrorCode.NOT_FOUND, ErrorCode.FILES_UNAVAILABLE)
    yield Endpoint("POST", path, client_files.upload_file, use, tag, "Upload a file",
        form=FileRequest, answer=client_files.FileObject | client_files.AnthropicFile, works=False,
        shared=True, errors=(ErrorCode.FILES_UNAVAILABLE, ErrorCode.INSUFFICIENT_DISK))
    yield Endpoint("GET", path, client_files.list_files, use, tag, "List the files",
        query=FilesQuery, answer=client_files.FileList | client_files.AnthropicFileList,
        shared=True, errors=(ErrorCode.FILES_UNAVAILABLE,))
    yield Endpoint("GET", f"{path}/{{id}}", client_files.get_file, use, tag, "Show a file",
        answer=client_files.FileObject | client_files.AnthropicFile, shared=True, errors=missing)
    yield Endpoint("DELETE", f"{path}/{{id}}", client_files.delete_file, use, tag, "Delete a file",
        answer=client_files.DeletedFile | client_files.AnthropicDeletedFile, shared=True,
        errors=(*missing, ErrorCode.INSUFFICIENT_DISK))
    yield Endpoint("GET", f"{path}/{{id}}/content", client_files.file_content, use, tag,
        "Fetch the bytes of a file", media="application/octet-stream", shared=True, errors=missing)


def _batches() -> Iterator[Endpoint]:
    use, tag, path = Access.INFERENCE, "Batches", "/v1/batches"
    broken = ErrorCode.FILES_UNAVAILABLE
    yield Endpoint("POST", path, batches.create_batch, use, tag,
        "Have the requests in a file answered while no other needs the model",
        request=batch_requests.BatchRequest, answer=batches.BatchObject, works=False,
        errors=(broken, ErrorCode.NOT_FOUND))
    yield Endpoint("GET", path, batches.list_batches, use, tag, "List the batches",
        query=batch_requests.BatchesQuery, answer=batches.BatchList, errors=(broken,))
    yield Endpoint("GET", f"{path}/{{id}}", batches.get_batch, use, tag, "Show a batch",
        answer=batches.BatchObject, errors=(broken,))
    yield Endpoint("POST", f"{path}/{{id}}/cancel", batches.cancel_batch, use, tag,
        "Cancel a batch", answer=batches.BatchObject, errors=(broken, ErrorCode.BATCH_ENDED))


def _message_batches() -> Iterator[Endpoint]:
    use, tag, path = Access.INFERENCE, "Batches", "/v1/messages/batches"
    broken = ErrorCode.FILES_UNAVAILABLE
    yield Endpoint("POST", path, message_batches.create_message_batch, use, tag,
        "Have requests answered while no other needs the model, by Anthropic's API",
        request=batch_requests.MessageBatchRequest, answer=message_batches.MessageBatch,
        works=False, errors=(broken, ErrorCode.INSUFFICIENT_DISK), family=ANTHROPIC)
    yield Endpoint("GET", path, message_batches.list_message_batches, use, tag,
        "List the batches, by Anthropic's API", query=batch_requests.MessageBatchesQuery,
        answer=message_batches.MessageBatchList, errors=(broken,), family=ANTHROPIC)
    yield Endpoint("GET", f"{path}/{{id}}", message_batches.get_message_batch, use, tag,
        "Show a batch, by Anthropic's API", answer=message_batches.MessageBatch, errors=(broken,),
        family=ANTHROPIC)
    yield Endpoint("DELETE", f"{path}/{{id}}", message_batches.delete_message_batch, use, tag,
        "Remove a batch that has ended, by Anthropic's API",
        answer=message_batches.DeletedMessageBatch, errors=(broken, ErrorCode.BATCH_ENDED),
        family=ANTHROPIC)
    yield Endpoint("POST", f"{path}/{{id}}/cancel", message_batches.cancel_message_batch, use, tag,
        "Cancel a batch, by Anthropic's API", answer=message_batches.MessageBatch,
        errors=(broken,), family=ANTHROPIC)
    yield Endpoint("GET", f"{path}/{{id}}/results", message_batches.message_batch_results, use, tag,
        "Fetch the results of a batch, by Anthropic's API", media="application/x-jsonl",
        errors=(broken,), family=ANTHROPIC)


def _ollama() -> Iterator[Endpoint]:
    """Yield the routes of Ollama's API."""
    use, tag = Access.INFERENCE, "Ollama"
    yield Endpoint("POST", "/api/chat", ollama.ollama_chat, use, tag,
        "Answer a conversation, by Ollama's API", request=OllamaChatRequest,
        answer=OllamaChatAnswer, streams=True, event=OllamaChatAnswer, family=OLLAMA,
        models=ModelKind.CHAT)
    yield Endpoint("POST", "/api/generate", ollama.ollama_generate, use, tag,
        "Answer a prompt, by Ollama's API", request=OllamaGenerateRequest,
        answer=OllamaGenerateAnswer, streams=True, event=OllamaGenerateAnswer, family=OLLAMA,
        models=ModelKind.CHAT)
    yield Endpoint("POST", "/api/embed", ollama.ollama_embed, use, tag,
        "Embed texts, by Ollama's API", request=OllamaEmbedRequest, answer=ollama.OllamaEmbedAnswer,
        family=OLLAMA, models=ModelKind.EMBEDDING)
    yield Endpoint("POST", "/api/embeddings", ollama.ollama_embeddings, use, tag,
        "Embed a text, by Ollama's older API", request=OllamaEmbeddingsRequest,
        answer=ollama.OllamaEmbeddingsAnswer, family=OLLAMA, models=ModelKind.EMBEDDING)
    yield Endpoint("GET", "/api/tags", ollama_models.ollama_tags, use, tag,
        "List the models, by Ollama's API", answer=ollama_models.OllamaModels, family=OLLAMA)
    yield Endpoint("GET", "/api/ps", ollama_models.ollama_ps, use, tag,
        "List the loaded models, by Ollama's API", answer=ollama_models.OllamaLoadedModels,
        family=OLLAMA)
    yield Endpoint("POST", "/api/show", ollama_models.ollama_show, use, tag,
        "Show one model, by Ollama's API", request=OllamaShowRequest,
        answer=ollama_models.OllamaModelDetails, family=OLLAMA)
    yield Endpoint("POST", "/api/pull", ollama_models.ollama_pull, use, tag,
        "Whether a model exists; Ollama would fetch it", request=OllamaPullRequest,
        answer=ollama_models.OllamaProgressLine, streams=True,
        event=ollama_models.OllamaProgressLine, family=OLLAMA)
    for method, path, handler in (
        ("POST", "/api/create", ollama_models.ollama_create),
        ("POST", "/api/copy", ollama_models.ollama_copy),
        ("DELETE", "/api/delete", ollama_models.ollama_delete),
        ("POST", "/api/push", ollama_models.ollama_push),
    ):
        yield Endpoint(method, path, handler, use, tag,
            "Not supported: a 400 with the operator's way", errors=(ErrorCode.UNSUPPORTED_VALUE,),
            family=OLLAMA)
    yield Endpoint("GET", "/api/version", ollama_models.ollama_version, Access.OPEN, tag,
        "The version of Ollama's API that is spoken", answer=version.Version, family=OLLAMA,
        quiet=True)


def _jobs() -> Iterator[Endpoint]:
    use, tag = Access.INFERENCE, "Jobs"
    yield Endpoint("GET", "/v1/jobs", jobs.list_jobs, use, tag,
        "List generations, under way and ended", query=requests.JobsQuery, answer=jobs.JobList,
        errors=(ErrorCode.JOBS_UNAVAILABLE,))
    yield Endpoint("GET", "/v1/jobs/{id}", jobs.get_job, use, tag, "Show one, with its result",
        answer=jobs.JobWithResult, errors=(ErrorCode.NOT_FOUND, ErrorCode.JOBS_UNAVAILABLE))
    yield Endpoint("DELETE", "/v1/jobs/{id}", jobs.delete_job, use, tag,
        "Cancel one that is under way, remove one that has ended",
        answer=jobs.CancelledJob | jobs.DeletedJob,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.JOB_RUNS_ELSEWHERE, ErrorCode.JOBS_UNAVAILABLE))
    use, tag = Access.ADMIN, "Administration"
    yield Endpoint("GET", "/admin/requests", jobs.list_requests, Access.OPERATOR, tag,
        "List the requests under way, and the last that have ended", query=requests.RequestsQuery,
        answer=jobs.RequestList, shows_rereads=True)
    yield Endpoint("POST", "/admin/requests/{id}/cancel", jobs.cancel_request, use, tag,
        "Cancel a request that is under way", answer=jobs.RequestList,
        errors=(ErrorCode.NOT_FOUND,))
    # What others have asked is for whoever may do anything.
    yield Endpoint("GET", "/admin/requests/{id}/capture", jobs.get_capture, use, tag,
        "Show what a request asked", answer=jobs.CapturedRequest, errors=(ErrorCode.NOT_FOUND,))


def _all_batches() -> Iterator[Endpoint]:
    tag, path, broken = "Administration", "/admin/batches", ErrorCode.FILES_UNAVAILABLE
    yield Endpoint("GET", path, all_batches.list_all_batches, Access.OPERATOR, tag,
        "List the batches of all keys", answer=all_batches.BatchesShown, errors=(broken,))
    yield Endpoint("POST", f"{path}/{{id}}/cancel", all_batches.cancel_any_batch, Access.ADMIN, tag,
        "Cancel a batch of any key", answer=all_batches.BatchesShown,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.BATCH_ENDED, broken))


def _front() -> Iterator[Endpoint]:
    use, tag = Access.OPEN, "Health"
    for path in ("/", "/ui"):
        yield Endpoint("GET", path, front.front, use, tag,
            "What this server is; a page for browsers", answer=front.Front, also=("text/html",),
            quiet=True)
    yield Endpoint("GET", "/version", version.version, use, tag, "lmx's version",
        answer=version.Version, quiet=True)
    yield Endpoint("GET", "/ping", version.ping, use, tag, "Whether the router is alive",
        quiet=True)
    yield Endpoint("GET", "/favicon.ico", files.icon, use, "Description",
        "The picture of the page", media="image/svg+xml", quiet=True)
    yield Endpoint("GET", "/ui/{file}", files.page_file, use, "Description", "A file of the page",
        media="text/javascript", also=("text/css",), errors=(ErrorCode.NOT_FOUND,), quiet=True)
    # Quiet: it is requested several times a second while an answer streams, and no model works.
    yield Endpoint("POST", "/ui/markdown", markdown.render_markdown, Access.INFERENCE,
        "Description", "Render Markdown, for the page", request=MarkdownRequest,
        answer=markdown.MarkdownTrees,
        errors=(ErrorCode.QUEUE_FULL, ErrorCode.RATE_LIMIT_EXCEEDED), quiet=True, shared=True)


def _operation() -> Iterator[Endpoint]:
    for path in ("/health", "/healthz", "/v1/health", "/status"):
        yield Endpoint("GET", path, health.health, Access.OPEN, "Health", "Whether lmx can serve",
            answer=health.ServerHealth, degraded_status=503, quiet=True)
    yield Endpoint("GET", "/metrics", metrics.metrics, Access.LOCAL, "Metrics", "For Prometheus",
        quiet=True)
    yield Endpoint("GET", "/admin/metrics", metrics.metrics, Access.METRICS, "Metrics",
        "For Prometheus", quiet=True)


def _description() -> Iterator[Endpoint]:
    use, tag = Access.OPEN, "Description"
    yield Endpoint("GET", "/openapi.json", openapi_document, use, tag, "This document",
        answer=dict[str, Any], quiet=True)
    yield Endpoint("GET", "/docs", api_page.docs_page, use, tag, "A page to read it with",
        media="text/html", quiet=True)
    for name, handler, media in (
        ("page.css", api_page.docs_page_style, "text/css"),
        ("start.js", api_page.docs_start, "text/javascript"),
        ("swagger-ui.css", api_page.docs_style, "text/css"),
        ("swagger-ui-bundle.js", api_page.docs_script, "text/javascript"),
    ):
        yield Endpoint("GET", f"/docs/{name}", handler, use, tag, "A file of the page", media=media,
            quiet=True)


def _watching() -> Iterator[Endpoint]:
    use, see, tag = Access.ADMIN, Access.OPERATOR, "Operation"
    yield Endpoint("GET", "/admin/metrics/json", metrics.admin_metrics_json, Access.METRICS,
        "Metrics", "For dashboards", answer=metrics.MetricsAnswer, quiet=True)
    yield Endpoint("GET", "/admin/usage", usage.usage, see, tag,
        "Show what was used, by day, model and key", query=requests.UsageQuery, answer=UsageAnswer,
        errors=(ErrorCode.USAGE_UNAVAILABLE,), quiet=True)
    yield Endpoint("GET", "/admin/usage/figures", usage.figures, see, tag,
        "Show the figures of the last hours", query=requests.FiguresQuery, answer=FiguresAnswer,
        errors=(ErrorCode.USAGE_UNAVAILABLE,), quiet=True)
    yield Endpoint("GET", "/admin/workers", workers.list_workers, see, tag,
        "List the models' processes", answer=workers.WorkersAnswer)
    yield Endpoint("POST", "/admin/workers/{id:.+}/kill", workers.kill_worker, use, tag,
        "Kill a model's process", answer=workers.KillAnswer,
        errors=(ErrorCode.MODEL_NOT_FOUND, ErrorCode.MODEL_NOT_LOADED))
    # Quiet: a follower must not hold up the end of a router.
    yield Endpoint("GET", "/admin/logs/{model:.+}", logs.stream_log, see, tag, "Follow a log",
        query=requests.LogsQuery, streams=True, event=logs.LogLine,
        errors=(ErrorCode.MODEL_NOT_FOUND,), quiet=True)
    yield Endpoint("GET", "/admin/events", events.stream_events, see, tag, "Follow what happens",
        query=requests.EventsQuery, streams=True, event=events.EventLine,
        errors=(ErrorCode.MODEL_NOT_FOUND,), quiet=True)
    yield Endpoint("GET", "/admin/live", live.stream_live, see, tag,
        "Follow all that changes, for a console", query=requests.LiveQuery, streams=True,
        event=live.LiveEvent, errors=(ErrorCode.MODEL_NOT_FOUND,), quiet=True,
        shows_rereads=True)


def _keys() -> Iterator[Endpoint]:
    use, tag, path = Access.ADMIN, "Keys", "/admin/keys"
    yield Endpoint("GET", path, keys.list_keys, Access.OPERATOR, tag, "List the keys",
        answer=keys.KeysAnswer)
    yield Endpoint("POST", path, keys.add_key, use, tag, "Make a key", request=KeyRequest,
        answer=keys.KeyMadeAnswer, status=201, errors=(ErrorCode.KEY_EXISTS,))
    yield Endpoint("POST", f"{path}/{{name}}/rotate", keys.rotate_key, use, tag,
        "Give a key another secret", request=RotateRequest, answer=keys.KeyMadeAnswer,
        errors=keys.KEY_ERRORS)
    yield Endpoint("DELETE", f"{path}/{{name}}", keys.revoke_key, use, tag, "Revoke a key",
        answer=Succeeded, errors=keys.KEY_ERRORS)


def _pairing() -> Iterator[Endpoint]:
    tag = "Peers"
    yield Endpoint("POST", "/pair/hello", pairing.pair_hello, Access.OPEN, tag,
        "Begin to pair this machine with another", request=PairHelloRequest,
        answer=pairing.PairWelcomeAnswer, errors=pairing.PAIR_ERRORS)
    yield Endpoint("POST", "/pair/proof", pairing.pair_proof, Access.OPEN, tag,
        "Pair this machine with another, which proves that it knows the code",
        request=PairProofRequest, answer=pairing.PairAcceptedAnswer,
        errors=(*pairing.PAIR_ERRORS, ErrorCode.PERMISSION_DENIED))
    yield Endpoint("DELETE", "/pair", pairing.forget_peer, Access.PEER, tag,
        "End the pairing with the machine that asks", answer=Succeeded,
        errors=(ErrorCode.NOT_FOUND,))
    yield Endpoint("POST", "/admin/ranks", ranks.start_rank, Access.PEER, tag,
        "Run one rank of a model of the machine that asks", request=RankRequest,
        answer=RankStarted, errors=ranks.RANK_ERRORS)
    yield Endpoint("DELETE", "/admin/ranks/{group}", ranks.end_ranks, Access.PEER, tag,
        "End the ranks that the machine has started", answer=Succeeded)
    yield Endpoint("POST", "/admin/ranks/probe", rank_probe.probe_way, Access.PEER, tag,
        "Measure the way between the machine that asks and this one",
        answer=rank_probe.RankProbeAnswer, errors=(ErrorCode.RATE_LIMIT_EXCEEDED,))


# fmt: on

ROUTES: Final = (
    *_inference(),
    *_messages(),
    *_responses(),
    *_conversations(),
    *_files_of_clients(),
    *_batches(),
    *_message_batches(),
    *_ollama(),
    *_jobs(),
    *_all_batches(),
    *_front(),
    *_operation(),
    *_administration(),
    *_engines(),
    *_watching(),
    *_keys(),
    *_pairing(),
    *_description(),
)
