"""The only reader of a model folder's config.json, for all processes. It also says which of the
folder's files hold the weights.

No other module parses config.json, or knows where in it the language model is described. Values
that only one engine or one kind of model needs are looked up in :attr:`CheckpointConfig.text` and
:attr:`CheckpointConfig.whole`, with :func:`count` for numbers.

The file may come from anywhere. So its size and its nesting are limited, and a number that no model
can have counts as absent. Where absent would mean little memory, it is an error.
"""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.states import ModelKind

CONFIG_LIMIT_BYTES: Final = 16 * 1024**2
"""A config.json may not be larger than this. Those of real models have some kilobytes."""

Section = Mapping[str, Any]
"""An object of the file, as it was parsed."""

_MOST: Final = 2**31
_LONGEST_NAME: Final = 80

TEXT_SECTIONS: Final = (
    *("thinker_config", "text_config", "language_config", "llm_config"),
    "transformer_layer_config",
)
"""Where models of several parts describe their language model, and EAGLE drafters their layers."""

_CONTEXT_KEYS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_LAYERS_KEYS: Final = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
)
_HIDDEN_KEYS: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim")
_HEADS_KEYS: Final = ("num_attention_heads", "n_head", "n_heads")
_VOCABULARY_KEYS: Final = ("vocab_size", "num_vocab")

_MOST_WEIGHT_FILES: Final = 4096

_SIZES: Final = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "vocab_size"),
)
"""The sizes of the language model that must be possible. An impossible one would count as absent,
which would mean little memory."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """A model folder's config.json. A number that the file does not have is 0, and a name is
    empty."""

    model_type: str
    """The whole model's type in lower case: ``gemma3``."""
    text_model_type: str
    """The language model's type in lower case: ``gemma3_text``. If the language model is not
    described separately, it is that of the whole model."""
    family: str | None
    """The type of the language model, else that of the whole model, as it is shown to people."""
    architectures: tuple[str, ...]
    """The names of the classes that the model was trained with."""
    context_tokens: int | None
    """The longest context that the model was made for. None: the file does not say."""
    impossible_context: str | None
    """What the file says of the context where no context can be that long."""
    layers: int
    hidden_size: int
    """How many numbers a layer passes on for each token."""
    attention_heads: int
    vocabulary_tokens: int
    names_code: bool
    """Whether the file names Python code of its own to run (``model_file``)."""
    text: Section = field(repr=False)
    """The part that describes the language model. It is the whole file if that is not nested."""
    whole: Section = field(repr=False)
    has_mark: bool = False
    """Whether the file begins with a byte order mark."""


def drafter_folder(folder: Path) -> Path | None:
    """Return the folder below a model's that holds what may draft its tokens; None: there is
    none."""
    found = folder / "drafter"
    return found if (found / "config.json").is_file() else None


def read_checkpoint_config(folder: Path) -> CheckpointConfig:
    """Read a model folder's config.json. This blocks for as long as its disk does.

    Raises :class:`OperationError` with MODEL_SOURCE_INVALID when there is no such file, and when it
    can't be read, is not a JSON object, or has values that no model can have.
    """
    file = folder / "config.json"
    try:
        content = read_regular(file, CONFIG_LIMIT_BYTES)
        config = parse_checkpoint_config(parse_json(content))
        return replace(config, has_mark=content.startswith(codecs.BOM_UTF8))
    except FileNotFoundError as error:
        raise _refused(f"{folder} has no config.json: not a model folder") from error
    except OSError as error:
        raise _refused(f"{file} can't be read: {error.strerror or error}") from error
    except _NonsenseError as error:
        raise _refused(f"{file} {error}") from error
    except ValueError as error:
        raise _refused(f"{file} is not JSON: {error}") from error


def parse_checkpoint_config(content: Any) -> CheckpointConfig:
    """Return what the parsed content of a config.json says. Pure. Whatever the content is, it
    raises nothing but ``ValueError``, for values that no model can have."""
    if not isinstance(content, dict):
        raise _NonsenseError("is no object: fetch the model again")
    whole: Section = content
    text = _text_section(whole)
    _refuse_sizes(text)
    model_type = _name(whole.get("model_type"))
    return CheckpointConfig(
        model_type=model_type.lower(),
        text_model_type=(_name(text.get("model_type")) or model_type).lower(),
        family=_family(text.get("model_type") or whole.get("model_type")),
        architectures=_names(whole.get("architectures")),
        context_tokens=count(text, *_CONTEXT_KEYS) or count(whole, *_CONTEXT_KEYS) or None,
        impossible_context=next(
            (
                _number_text(text[key])
                for key in _CONTEXT_KEYS
                if isinstance(text.get(key), int | float)
            ),
            None,
        ),
        layers=count(text, *_LAYERS_KEYS),
        hidden_size=count(text, *_HIDDEN_KEYS),
        attention_heads=count(text, *_HEADS_KEYS),
        vocabulary_tokens=count(text, *_VOCABULARY_KEYS) or count(whole, *_VOCABULARY_KEYS),
        names_code="model_file" in whole,
        text=text,
        whole=whole,
    )


INDEX_NAME: Final = "model.safetensors.index.json"
"""The file that says which of a folder's files hold the weights."""


def weight_files(folder: Path, kind: ModelKind) -> list[Path]:
    """Return the files that hold a model's weights, sorted by name.

    Of a model that writes, these are the files that its index names, if it has one and they are all
    there. Else they are all but ``consolidated.safetensors``, in which Mistral gives the same
    weights once more. Raises ``OSError``, and :class:`OperationError` when there are more files
    than any model has.
    """
    found = sorted(folder.glob("*.safetensors"))
    if kind is ModelKind.CHAT:
        named = indexed_names(folder)
        chosen = [file for file in found if file.name in named]
        if not named or len(chosen) < len(named):
            chosen = [file for file in found if file.name != "consolidated.safetensors"]
        found = chosen or found
    else:
        # The dense layers of sentence-transformers are in folders of their own.
        found += sorted(folder.glob("*/*.safetensors"))
    if len(found) > _MOST_WEIGHT_FILES:
        raise _refused(f"{folder} has {len(found)} files of weights: fetch the model again")
    return found


def indexed_names(folder: Path) -> frozenset[str]:
    """Return the names of the files that a folder's index names; none if it has none that can be
    read."""
    try:
        index = parse_json(read_regular(folder / INDEX_NAME, 4 * CONFIG_LIMIT_BYTES))
        return frozenset(map(str, index["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()


def count(section: Section, *names: str) -> int:
    """Return the first of these values that is a number above 0 which a model can have, else 0."""
    for name in names:
        value = section.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
            return value
    return 0


def _number_text(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:  # JSON's integers have no end, and floats have one.
        return f"{'over ' if value > 0 else 'under -'}1e308"


class _NonsenseError(ValueError):
    """The file is JSON, but has values that no model can have."""


def _refused(message: str) -> OperationError:
    return OperationError(ErrorCode.MODEL_SOURCE_INVALID, message)


def _text_section(section: Section) -> Section:
    while True:
        inner = next(
            (
                part
                for name in TEXT_SECTIONS
                if isinstance(part := section.get(name), dict) and part
            ),
            None,
        )
        if inner is None:
            return section
        section = inner


def _refuse_sizes(text: Section) -> None:
    for key in _SIZES:
        value = text.get(key)
        if isinstance(value, int) and not 0 <= value < _MOST:
            said = value if abs(value) < 2**63 else "beyond 64 bits"
            raise _NonsenseError(f"makes no sense: {key} is {said}")


def _family(value: Any) -> str | None:
    if not value:
        return None
    if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_NAME:
        return value
    raise _NonsenseError("makes no sense: model_type is no name")


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _names(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
