"""What people write as a model's source, and what it is read as."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    Source,
    SourceError,
    default_model_id,
    parse_models_variable,
    parse_source,
)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("/models/qwen", FolderSource("/models/qwen")),
        ("./qwen", FolderSource("./qwen")),
        ("../qwen", FolderSource("../qwen")),
        (".", FolderSource(".")),
        ("~/qwen", FolderSource("~/qwen")),
        ("~/Qwen@main", FolderSource("~/Qwen@main")),
        ("  /models/qwen ", FolderSource("/models/qwen")),
        ("m.gguf", GgufSource("m.gguf")),
        ("/models/M.GGUF", GgufSource("/models/M.GGUF")),
        ("dir/m.gguf", GgufSource("dir/m.gguf")),
        ("mlx-community/Qwen3-0.6B-4bit", HubSource("mlx-community/Qwen3-0.6B-4bit")),
        ("org/name@main", HubSource("org/name", "main")),
        ("org/name@refs/pr/1", HubSource("org/name", "refs/pr/1")),
        ("o/n@0123456789abcdef", HubSource("o/n", "0123456789abcdef")),
    ],
)
def test_parse_source(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("qwen", r"write './qwen' for a folder, or 'org/qwen'"),
        ("org/name/more", "not a hub repository"),
        ("org/-name", "not a hub repository"),
        ("org/na--me", "not a hub repository"),
        ("org/na..me", "not a hub repository"),
        ("name@main", "neither a path nor"),
        ("org/", "not a hub repository"),
        ("org/name@", "revision ''"),
        ("org/name@../x", r"revision '\.\./x'"),
        ("org/name@a b", "revision 'a b'"),
        ("o/" + "n" * 95, "96 characters"),
        ("org/na\nme", "unprintable"),
    ],
)
def test_parse_source_refuses(text: str, hint: str) -> None:
    with pytest.raises(SourceError, match=hint):
        parse_source(text)


@given(st.text(max_size=60))
def test_parse_source_reads_or_refuses(text: str) -> None:
    try:
        source = parse_source(text)
    except SourceError as error:
        assert str(error)
    else:
        assert parse_source(text.strip()) == source


_PART = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9]|[-._](?=[A-Za-z0-9])){0,20}", fullmatch=True)


@given(org=_PART, name=_PART)
def test_a_hub_repository_keeps_its_name(org: str, name: str) -> None:
    if name.lower().endswith(".gguf"):
        return
    source = parse_source(f"{org}/{name}")
    assert source == HubSource(f"{org}/{name}")
    assert default_model_id(source) == f"{org}/{name}"


@pytest.mark.parametrize(
    ("text", "model_id"),
    [
        ("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("Qwen3-0.6B-Q4_K_M.gguf", "qwen3-0.6b"),
        ("Qwen3-0.6B-UD-IQ2_XXS.gguf", "qwen3-0.6b"),
        ("model.f16.gguf", "model"),
        ("model-BF16.gguf", "model"),
        ("gpt-oss-mxfp4.gguf", "gpt-oss"),
        ("big-Q8_0-00001-of-00003.gguf", "big"),
        ("./q4.gguf", "q4"),
        ("My Model (1).gguf", "my-model-1"),
        ("/models/Qwen3-4bit/", "qwen3-4bit"),
        ("~/Qwen3.5", "qwen3.5"),
    ],
)
def test_default_model_id(text: str, model_id: str) -> None:
    assert default_model_id(parse_source(text)) == model_id


@pytest.mark.parametrize("text", ["/", ".", "~", "./Ω"])
def test_no_default_model_id(text: str) -> None:
    with pytest.raises(SourceError, match="give one, as in"):
        default_model_id(parse_source(text))


def test_models_variable() -> None:
    text = "small=/m/a.gguf, org/Name@main ,/m/x=y/Folder,org/id=org/other,"
    assert parse_models_variable(text) == [
        ("small", "/m/a.gguf"),
        ("org/Name", "org/Name@main"),
        ("folder", "/m/x=y/Folder"),
        ("org/id", "org/other"),
    ]
    assert parse_models_variable("") == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a=/x,a=/y", "'a' is given twice: for '/x' and for '/y'"),
        ("/m/a.Q4_0.gguf,/m/a.Q8_0.gguf", "'a' is given twice"),
        ("=/x", "'' in '=/x' is not a model id"),
        ("a b=/x", "'a b' in 'a b=/x' is not a model id"),
        ("-a=/x", "begins with a letter or a digit"),
        ("a=", "is empty"),
        ("a=qwen", "neither a path nor"),
    ],
)
def test_models_variable_refuses(text: str, hint: str) -> None:
    with pytest.raises(SourceError, match=hint):
        parse_models_variable(text)
