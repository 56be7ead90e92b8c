"""What lmx uses of its libraries that they promise nobody: each part, where, and what for.

What is private, what is replaced at run time, and what is in no documentation. The tests in
``contracts`` hold each line against the libraries that are installed, so that a raised pin that
breaks one of them says which.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Any, NamedTuple

from lmx.worker.formats.forms import library

_TOOLS = "mlx_vlm.tools."


class Part(NamedTuple):
    """One part of a library."""

    where: str
    """The module, a colon, and the name in it."""
    files: tuple[str, ...]
    """The files that use it."""
    use: str
    """What they use it for: goes on after "is used for"."""
    takes: tuple[str, ...] | None = None
    """Names of the parameters that it is given. None: it is not called, or has no signature."""


CPU = "worker/mlx/device/cpu.py"
PREFILL = "worker/mlx/decoding/prefill.py"
DECODE = "worker/mlx/decoding/decode.py"
ROLLBACK = "worker/mlx/decoding/rollback.py"
DRAFT = "worker/mlx/drafting/draft_model.py"
DRAFTER = "worker/mlx/drafting/hidden_state_drafter.py"
DRAFT_LOADER = "worker/mlx/drafting/load.py"
STATE = "worker/mlx/prefix/state.py"
ENGINE = "worker/mlx/engine.py"
BOTH_WAYS = "worker/mlx/media/bidirectional_mask.py"
ENCODING = "worker/mlx/media/encoding.py"
MARKERS = "worker/mlx/media/markers.py"
PROCESSOR = "worker/mlx/media/processor.py"
EMBEDDING = "worker/mlx/encoders/embedding.py"
GUARD = "worker/mlx/model/guard.py"
IMPORTS = "worker/mlx/library_imports.py"
NEEDS = "worker/mlx/media/processor.py"
LM_PATCHES = "worker/mlx/model/patches/mlx_lm.py"
VLM_PATCHES = "worker/mlx/model/patches/mlx_vlm.py"
OMNI = "worker/mlx/model/patches/qwen3_omni.py"
SLICES = "worker/mlx/media/slices.py"
SLOTS = "worker/mlx/model/batch_slots.py"
GGUF = "supervisor/fetch/gguf.py"
FILE = "supervisor/fetch/file.py"
HUB = "supervisor/fetch/hub.py"
CACHE = "supervisor/fetch/cache.py"
FETCHED = "supervisor/memory/fetched.py"
BODY = "router/http/bodies/json_body.py"
CONNECTIONS = "router/server/connections.py"
IN_PROCESS = "router/http/in_process.py"
API_PAGE = "router/console/api_page.py"
GRAMMAR = "worker/constraints/grammar.py"
REGISTRY = "worker/formats/forms/library.py"
VOCABULARY = "worker/constraints/vocabulary.py"
SPEECH = "worker/mlx/speech/decoder.py"
SPEECH_LOAD = "worker/mlx/speech/load.py"
CONVOLUTIONS = "worker/mlx/device/cpu_convolutions.py"
KOKORO = "worker/mlx/voices/kokoro.py"
POCKET = "worker/mlx/voices/pocket.py"

_BLOCK = (*("self", "last_bonus", "hidden", "cache", "block_size", "sampler"), "token_dtype")

_SLICED = "computing large pictures in slices"

# fmt: off
PARTS: dict[str, Sequence[Part]] = {
    "mlx": (
        *(
            Part(
                f"mlx.core.fast:{name}",
                (CPU,),
                f"computing {what} of few operations on a CPU: lmx replaces it there",
            )
            for name, what in (("rms_norm", "norms"), ("rope", "rotary positions"))
        ),
        *(
            Part(
                f"mlx.core:{name}",
                (CONVOLUTIONS,),
                "computing a voice's convolutions by products on a CPU: lmx replaces it there",
            )
            for name in ("conv1d", "conv_transpose1d")
        ),
        *(
            Part(
                f"mlx.core:{name}",
                (KOKORO,),
                "computing a sentence in parts: lmx replaces it while a sentence is recorded",
            )
            for name in ("conv1d", "conv_transpose1d", "eval")
        ),
        *(
            Part(where, (SLICES,), f"{_SLICED}: lmx replaces it while a picture is recorded", takes)
            for where, takes in (
                ("mlx.core.fast:scaled_dot_product_attention", None),
                ("mlx.core:eval", None),
                *(
                    (f"mlx.nn:{layer}.__call__", ("self", "x"))
                    for layer in ("Linear", "QuantizedLinear", "Conv1d", "Conv2d", "Conv3d")
                ),
            )
        )),
    "mlx-lm": (
        Part(
            "mlx_lm.utils:_get_classes", (LM_PATCHES,),
            "the class of each type but gpt-oss and the Mistrals 3", ("config",)),
        Part(
            "mlx_lm.models.ernie4_5_moe:Ernie4_5_MoeMLP.__call__", (LM_PATCHES,),
            "choosing experts as the weights say: lmx replaces it", ("self", "x")),
        Part(
            "mlx_lm.models.gpt_oss:Model.sanitize", (LM_PATCHES,),
            "reading weights under transformers' names", ("self", "weights")),
        Part(
            "mlx_lm.models.ministral3:Model.sanitize", (LM_PATCHES,),
            "decoding 8-bit floats before their scales are applied", ("self", "weights")),
        Part(
            "mlx_lm.models.gemma2:TransformerBlock.__call__", (LM_PATCHES,),
            "giving each layer a mask of its own: so it is in all classes with windows in lmx",
            ("self", "x", "mask", "cache")),
        Part(
            "mlx_lm.models.rope_utils:initialize_rope", (LM_PATCHES,),
            "scaled rotary embeddings of classes that have plain ones",
            ("dims", "base", "traditional", "scaling_config", "max_position_embeddings")),
        Part(
            "mlx_lm.models.phi3small:Attention._block_sparse_attention", (LM_PATCHES,),
            "attention by blocks that begin with the text: lmx replaces it",
            ("self", "queries", "keys", "values", "scale", "mask")),
        Part(
            "mlx_lm.models.plamo3:Model.make_cache", (LM_PATCHES,),
            "letting the caches hold the whole window", ("self",))),
    "mlx-vlm": (
        *(
            Part(
                f"mlx_vlm.models.base:{name}",
                (SLICES,),
                f"{_SLICED}: lmx replaces it while a picture is recorded",
                takes,
            )
            for name, takes in (
                ("ensure_fused_sdpa", ("q", "k", "v", "scale", "mask")),
                ("chunked_attention", ("queries", "keys", "values", "scale", "chunk_size")),
            )
        ),
        Part(
            "mlx_vlm.models.qwen3_omni_moe.language:LanguageModel.get_rope_index", (OMNI,),
            "where the frames and the sound of a video are in time: lmx replaces it",
            ("self", "input_ids", "image_grid_thw", "video_grid_thw", "attention_mask")),
        Part(
            "mlx_vlm.generate.ar:_extend_cache", (SLOTS,),
            "taking a row that was prefilled into the batch that decodes", ("cache_a", "cache_b")),
        Part(
            "mlx_vlm.generate.ar:_get_batch_cache_eval_interval", (DECODE,),
            "how many steps go by between two evaluations of the whole cache", ()),
        Part(
            "mlx_vlm.generate.ar:_is_sequence_aligned_prompt_kwarg", (PREFILL,),
            "which arguments of a forward are cut with the chunks of a prompt",
            ("key", "v", "sequence_length")),
        Part(
            "mlx_vlm.generate.ar:_slice_sequence_aligned_prompt_kwarg", (PREFILL,),
            "cutting those arguments", ("key", "v", "start", "stop")),
        Part(
            "mlx_vlm.generate.ar:PromptProcessingBatch._capture_rope_deltas_from_prompt_kwargs",
            (PREFILL,), "what decoding tells a model of its positions",
            ("prompt_kwargs", "language_model", "B")),
        Part(
            "mlx_vlm.generate.common:_chunked_prefill_enabled", (PREFILL,),
            "whether a prompt may be processed in chunks",
            ("model", "input_ids", "inputs_embeds", "prompt_cache", "prefill_kwargs")),
        Part(
            "mlx_vlm.generate.common:generation_stream", (ENGINE,),
            "the stream that all of a model's work runs on"),
        Part(
            "mlx_vlm.models.gemma4.language:Gemma4TextModel._apply_blockwise_bidirectional_overlay",
            (BOTH_WAYS,), "letting the tokens of a picture see each other in both directions",
            ("self", "base_mask", "mm_token_type_ids")),
        Part(
            "mlx_vlm.models.gemma4.language:Gemma4TextModel._block_sequence_ids_for_mask",
            (BOTH_WAYS,), "telling the pictures of a chunk apart", ("self", "mm_token_type_ids")),
        Part(
            "mlx_vlm.models.gemma3n.gemma3n:Model.get_input_embeddings", (VLM_PATCHES,),
            "multiplying the embeddings of a text as those of an answer are",
            ("self", "input_ids")),
        Part(
            "mlx_vlm.models.gemma3n.language:Gemma3nAttention.__call__", (VLM_PATCHES,),
            "turning the queries of layers that read another one's keys by the tokens' own places",
            ("self", "x", "mask", "cache")),
        Part(
            "mlx_vlm.quantization.checkpoint:_dequantize_compressed_tensors_fp8_weight",
            (VLM_PATCHES,), "noting each weight that is decoded as progress: lmx replaces it",
            ("weight", "scale", "block_structure")),
        Part(
            "mlx_vlm.models.hy_v4.indexer:_partition_scores", (VLM_PATCHES,),
            "choosing the tokens to attend to, for texts of every length", ("top_k", "masked")),
        Part(
            "mlx_vlm.models.mllama.language:MllamaCrossAttentionDecoderLayer.__call__",
            (VLM_PATCHES,),
            "letting a text without pictures pass over these layers: lmx replaces it",
            ("self", "hidden_states", "cross_attention_states")),
        Part(
            "mlx_vlm.models.modernbert.modernbert:Model._masks", (VLM_PATCHES,),
            "masks that are finite in float16: lmx replaces it",
            ("self", "attention_mask", "dtype")),
        *(
            Part(
                f"mlx_vlm.models.{name}.{name}:normalize_embeddings",
                (EMBEDDING,),
                "normalizing vectors in 32 bits: lmx replaces it",
                ("embeddings",),
            )
            for name in (
                *("bert", "embedding_gemma2", "gemma3_embedding", "lfm2_embedding"),
                *("llama_bidirec", "ministral3_embedding", "modernbert", "qwen3_embedding"),
                "xlm_roberta",
            )
        ),
        *(
            Part(
                f"mlx_vlm.models.{name}.{name}:Model.get_input_embeddings",
                (VLM_PATCHES,),
                "letting the positions of a text count on",
                ("self",),
            )
            for name in ("cohere_compass", "glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl")
        ),
        Part(
            "mlx_vlm.models.glm_ocr.language:LanguageModel.__call__", (VLM_PATCHES,),
            "computing the positions of a row from its rope deltas", ("self", "inputs")),
        Part(
            "mlx_vlm.models.qwen3_vl.qwen3_vl:Model._merge_deepstack_features", (ENCODING,),
            "telling the classes whose eyes return features for deep layers too"),
        Part(
            "mlx_vlm.prompt_utils:MODEL_CONFIG", (MARKERS,),
            "knowing what stands for a picture where a chat template takes texts alone"),
        Part(
            "mlx_vlm.prompt_utils:MessageFormatter.format_message", (MARKERS,), "the same",
            ("self", "prompt", "num_images", "num_audios")),
        Part(
            "mlx_vlm.prompt_utils:SINGLE_IMAGE_ONLY_MODELS", (NEEDS,),
            "which models take one picture in a request"),
        Part(
            "mlx_vlm.utils:processor_video_sampling", (NEEDS,),
            "how many frames of a video a processor takes", ("processor",)),
        Part(
            "mlx_vlm.utils:prepare_inputs", (PROCESSOR,),
            "what a model's own processor makes of pictures, sounds and videos in memory",
            (
                *("processor", "images", "audio", "videos", "prompts", "image_token_index"),
                "add_special_tokens")),
        Part(
            "mlx_vlm.models.cache:BatchRotatingKVCache._temporal_order", (ROLLBACK,),
            "ordering the windows of a batch by time, without which the mask for several tokens is "
                "wrong", ("self",)),
        Part(
            "mlx_vlm.speculative.cache_state:start_speculative_cache", (ROLLBACK,),
            "taking wrong drafts back out of a cache", ("caches", "length")),
        Part(
            "mlx_vlm.speculative.cache_state:SpeculativeCacheTransaction.commit", (ROLLBACK,),
            "keeping the right drafts of each row", ("self", "lengths")),
        Part(
            "mlx_vlm.apc_adapters:resolve_capability", (STATE,),
            "whether a kind of cache can be stored and restored", ("cache",)),
        Part(
            "mlx_vlm.apc_adapters:Capability.UNSUPPORTED", (STATE,),
            "telling the kinds of cache that can't"),
        Part(
            "mlx_vlm.models.cache:KVCache.prefix_cache_snapshot", (STATE,),
            "storing the states of caches that can't be cut", ("self",)),
        Part(
            "mlx_vlm.models.cache:KVCache.prefix_cache_restore", (STATE,),
            "putting such states back", ("self", "snapshot")),
        Part(
            "mlx_vlm.tools.registry:SPECS", (REGISTRY,),
            "telling by a chat template how a model calls tools: the file is loaded by itself"),
        Part(
            "mlx_vlm.tools.parsers.pythonic:parse_tool_call", (REGISTRY,),
            "reading the calls of families: each parser's file is loaded by itself",
            ("text", "tools")),
        Part(
            "mlx_vlm.models.cache:BufferedRotatingKVCache", (DRAFT,),
            "a sliding window out of which a draft model's drafts can be taken",
            ("max_size", "buffer_size")),
        Part(
            "mlx_vlm.speculative.drafters:load_drafter", (DRAFT_LOADER,),
            "loading a drafter, or the heads for further tokens out of a model's folder",
            ("path_or_repo",)),
        Part(
            "mlx_vlm.speculative.drafters:validate_drafter_compatibility", (DRAFT_LOADER,),
            "whether a drafter was made for a model",
            ("target_model", "draft_model", "draft_kind")),
        Part(
            "mlx_vlm.speculative.drafters.mtp_split:detect_mtp_splitter", (DRAFT_LOADER,),
            "whether a model's folder has heads for further tokens", ("model_path",)),
        Part(
            "mlx_vlm.speculative.utils:speculative_prefill_kwargs", (DRAFT_LOADER,),
            "which layers' hidden states a drafter takes", ("draft_kind", "drafter")),
        *(
            Part(
                f"mlx_vlm.speculative.drafters.{where}.{name}",
                (DRAFTER,),
                use,
                takes,
            )
            for where in (
                "eagle3.eagle3:Eagle3DraftModel",
                "mtp_base:AutoregressiveMTPDraftModel",
                "qwen3_5_mtp.qwen3_5_mtp:Qwen3_5MTPDraftModel",
            )
            for name, use, takes in (
                ("reset", "beginning a row", ("self", "target_model")),
                (
                    "accept_verified_tokens",
                    "telling a drafter what the model has computed",
                    (
                        *("self", "verify_hidden", "draft_tokens", "accepted", "new_tokens"),
                        *("sampler", "token_dtype"),
                    ),
                ),
                ("draft_block", "drafting", _BLOCK),
            )
        ),
        Part(
            "mlx_vlm.speculative.drafters.qwen3_dflash.dflash:DFlashDraftModel.draft_block",
            (DRAFTER,), "drafting a block of tokens", _BLOCK)),
    "transformers": (
        Part(
            "transformers.dynamic_module_utils:get_class_in_module", (GUARD,),
            "keeping code that comes with a checkpoint from being run: lmx replaces it"),
        Part(
            "transformers.utils.import_utils:create_import_structure_from_path", (IMPORTS,),
            "finding out what transformers exports: lmx keeps it", ("module_path",))),
    "llguidance": (
        Part(
            "llguidance:LLMatcher.unsafe_compute_mask_ptr",
            (GRAMMAR, "worker/constraints/probe.py", "worker/constraints/compiler.py"),
            "writing the tokens that may come next into a mask"),
        Part(
            "llguidance:LLMatcher.deep_copy", (GRAMMAR,),
            "giving each row a grammar of its own out of the one that was compiled"),
        Part(
            "llguidance:LLMatcher.validate_tokens", (GRAMMAR,),
            "asking whether a token fits before it is taken"),
        Part(
            "llguidance:LLTokenizer.is_special_token", (VOCABULARY,),
            "which tokens have a name in a grammar and no text"),
        Part("llguidance:LLTokenizer.decode_bytes", (VOCABULARY,), "the bytes of each token"),
        Part(
            "llguidance.hf:from_tokenizer", (VOCABULARY,), "reading a vocabulary",
            ("hf_tokenizer", "n_vocab", "eos_token"))),
    "gguf": (
        Part(
            "gguf:GGUFReader._get_field_parts", (GGUF,),
            "the progress of reading a file's header: lmx counts its calls",
            ("self", "orig_offs", "raw_type")),),
    "gguf2mlx": (
        Part(
            "gguf2mlx.gguf2mlx:_convert", (GGUF,),
            "converting a file without the checks of which one refuses bfloat16",
            ("gguf_path", "output_dir", "dtype", "max_shard_bytes")),
        Part(
            "gguf2mlx.gguf2mlx:_convert_direct_quantized", (GGUF,), "converting a file into 4 bits",
            (
                *("gguf_path", "output_dir", "dtype", "q_bits"),
                *("q_group_size", "q_mode", "max_shard_bytes"))),
        Part(
            "gguf2mlx.gguf2mlx:GGUFReader", (GGUF,),
            "reading the file's header once for all: lmx replaces it"),
        Part("gguf2mlx.gguf2mlx:tqdm", (GGUF,), "the progress of a conversion: lmx replaces it"),
        Part(
            "gguf2mlx.gguf2mlx:fidelity.reference_tensor", (GGUF,),
            "the progress of the comparison after a conversion: lmx wraps it", ("tensor",)),
        Part("gguf2mlx.vlm:is_vlm", (GGUF,), "refusing files of multimodal models", ("reader",))),
    "huggingface_hub": (
        Part(
            "huggingface_hub.file_download:repo_folder_name", (HUB, CACHE),
            "where the hub client keeps a repository", ("repo_id", "repo_type")),
        Part(
            "huggingface_hub.constants:MAX_HTTP_DOWNLOAD_SIZE", (HUB,),
            "which files are left to the hub client"),
        Part(
            "huggingface_hub.utils:WeakFileLock", (FILE,),
            "waiting for another program that downloads the same file", ("lock_file", "timeout")),
        Part(
            "huggingface_hub.utils:filter_repo_objects", (HUB,),
            "which files of a repository are a model's", ("items", "allow_patterns"))),
    "mlx-audio": (
        Part(
            "mlx_audio.stt.models.whisper.audio:log_mel_spectrogram", (SPEECH,),
            "what a Whisper hears of a window", ("audio", "n_mels")),
        Part(
            "mlx_audio.stt.models.whisper.whisper:Model.sanitize", (SPEECH_LOAD,),
            "reading the names of weights in either form", ("self", "weights"))),
    "aiohttp": (
        Part(
            "aiohttp.web_protocol:RequestPayloadError", (BODY,),
            "telling a body that was cut off from a bug"),
        Part(
            "aiohttp.http_exceptions:LineTooLong", (CONNECTIONS,),
            "answering a header that is too long with 431"),
        Part(
            "aiohttp.web_protocol:RequestHandler.handle_error", (CONNECTIONS,),
            "the form of answers to what is no HTTP: lmx replaces it",
            ("self", "request", "status", "exc", "message")))}

FIELDS: dict[str, Sequence[tuple[str, str, str]]] = {
    "aiohttp": (
        ("_match_info", IN_PROCESS, "giving a request without a connection its route"),),
    "mlx-audio": (
        ("_generate_audio_stream_short_text", POCKET, "the frames of a sentence"),
        ("_get_flow_cache_num_frames", POCKET, "where a voice ends in the cache"),
        ("_slice_flow_cache", POCKET, "forgetting the sentence before"),
        ("_mask", SPEECH, "what a token of a Whisper sees of those before it"),
        ("_positional_embedding", SPEECH, "where a window's parts are in time")),
    "mlx-vlm": (
        ("_idx", STATE, "where a row's tokens end in the cache of a batch"),
        ("_rope_deltas", VLM_PATCHES, "letting the positions of a text count on"),
        ("_position_ids", VLM_PATCHES, "computing the positions of a row from its rope deltas"))}
# fmt: on
"""Private fields of a library's objects, the file that reads them, and what for. They exist only in
instances: a test of their own makes one."""


def said(library: str, where: str, files: Sequence[str], use: str) -> str:
    """Return what broke, for whoever raised a pin."""
    return (
        f"{where} of {library} is used in {' and '.join(files)} for {use}; "
        f"in version {version(library)} "
    )


def _module(name: str) -> ModuleType:
    # Importing the package of these needs fastapi, which lmx does not install.
    if name.startswith(_TOOLS):
        return library._load(name.removeprefix(_TOOLS).replace(".", "/"))
    if name == "aiohttp.web_protocol":
        # lmx replaces a method in the whole process: what counts is the library's own.
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return importlib.import_module(name)


def find(library: str, part: Part) -> Any:
    """Return the part, as it is installed. Fails a test that asks for what is gone, or for what
    takes other parameters now."""
    words = said(library, part.where, part.files, part.use)
    module, _, path = part.where.partition(":")
    try:
        found: Any = _module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise AssertionError(f"{words}it is gone: {error}") from error
    if part.takes is not None:
        parameters = inspect.signature(found).parameters
        missing = [name for name in part.takes if name not in parameters]
        assert not missing, f"{words}it takes no {', '.join(missing)}: {list(parameters)}"
        needed = [
            name
            for name, one in parameters.items()
            if one.default is one.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            and name not in part.takes
        ]
        assert not needed, f"{words}it must be given {', '.join(needed)} too"
    return found
