"""`lmx fit`: which settings let several models stay loaded at a time."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.views.estimate import named_model
from lmx.supervisor.cli.views.fit import _entry, print_fit
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.inventory.added import with_added
from lmx.supervisor.memory.fit import Rung, Share, fit, ladder
from lmx.supervisor.state.home import Home
from tests.support.models.model_folders import write_model

LARGER = {"max_position_embeddings": 131_072, "head_dim": 64, "num_hidden_layers": 8}
OWN = Share(131_072, None, 2)


def reserved(share: Share) -> int:
    bits = share.kv_bits or 16
    return 1000 + (share.context_tokens or 0) * bits * share.concurrency // 16


def test_a_ladder_gives_up_in_order_and_each_rung_takes_less() -> None:
    shares = [rung.share for rung in ladder(OWN, reserved)]
    assert shares == [
        OWN, Share(65_536, None, 2), Share(32_768, None, 2), Share(32_768, 8, 2),
        Share(32_768, 8, 1), Share(16_384, 8, 1), Share(8192, 8, 1), Share(4096, 8, 1),
        Share(4096, 4, 1),
    ]  # fmt: skip
    sizes = [rung.reserve_bytes for rung in ladder(OWN, reserved)]
    assert sizes == sorted(set(sizes), reverse=True)


def test_what_a_model_cannot_have_is_no_rung() -> None:
    window = ladder(OWN, lambda share: None if share.kv_bits else reserved(share))
    assert {rung.share.kv_bits for rung in window} == {None}
    assert window[-1].share == Share(4096, None, 1)
    encoder = Share(None, None, 1)
    assert ladder(encoder, lambda _: 7) == (Rung(encoder, 7),)


def test_models_give_up_alike_and_get_back_what_there_is_room_for() -> None:
    one = ladder(OWN, reserved)
    both = {"a": one, "b": one}
    enough = fit(both, 10**9)
    assert enough is not None
    assert {rung.share for rung in enough.values()} == {OWN}
    some = fit(both, 200_000)
    assert some is not None
    assert sum(rung.reserve_bytes for rung in some.values()) <= 200_000
    assert {rung.share.context_tokens for rung in some.values()} == {65_536, 32_768}
    assert fit(both, 4000) is None
    big = ladder(OWN, lambda share: 100 * reserved(share))
    uneven = fit({"small": one, "big": big}, 100 * reserved(Share(65_536, None, 2)) + 300_000)
    assert uneven is not None
    assert (uneven["small"].share, uneven["big"].share.context_tokens) == (OWN, 65_536)


def config_of(folder: Path, budget: str) -> Config:
    models = [
        {"id": name, "source": str(write_model(folder / name, **LARGER))} for name in ("a", "b")
    ]
    memory = {"budget_bytes": budget, "os_reserve_bytes": 1}
    return Config.model_validate({"memory": memory, "models": models})


def test_what_is_printed_is_a_configuration_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home")
    print_fit(config_of(tmp_path, "64GiB"), home, ("a", "b"), False)
    assert "They fit as they are." in capsys.readouterr().out
    print_fit(config_of(tmp_path, "64GiB"), home, ("a", "b"), True)
    whole = json.loads(capsys.readouterr().out)
    assert [each["changes"] for each in whole["models"]] == [{}, {}]
    tight = "700MiB"
    print_fit(config_of(tmp_path, tight), home, ("a", "b"), False)
    lines = capsys.readouterr().out.partition("In lmx.yaml:")[2]
    changed: dict[str, Any] = yaml.safe_load(lines)
    configured = config_of(tmp_path, tight).model_dump(exclude_unset=True)
    for model in configured["models"]:
        model |= next((one for one in changed["models"] if one["id"] == model["id"]), {})
    print_fit(Config.model_validate(configured), home, ("a", "b"), True)
    again = json.loads(capsys.readouterr().out)
    assert [each["changes"] for each in again["models"]] == [{}, {}]
    with pytest.raises(OperationError, match="they do not fit together: at the least"):
        print_fit(config_of(tmp_path, "1MiB"), home, ("a", "b"), False)
    with pytest.raises(OperationError, match="named twice"):
        print_fit(config_of(tmp_path, "64GiB"), home, ("a", "a"), False)
    models = config_of(tmp_path, "64GiB").models
    one_folder = models[1].model_copy(update={"source": models[0].source})
    twins = config_of(tmp_path, "64GiB").model_copy(update={"models": (models[0], one_folder)})
    print_fit(twins, home, ("a", "b"), False)
    assert "They fit as they are." in capsys.readouterr().out


def test_the_lines_for_models_that_the_file_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was added it has no source, and of one that is not served no name."""
    folders = [write_model(tmp_path / name, **LARGER) for name in ("a", "Qwen2.5-7B-4bit", "c")]
    config = config_of(tmp_path, "1400MiB").model_copy(update={"models": ()})
    added = {
        name: AddedModelConfig(id=name, source=str(folder), **own)
        for name, folder, own in (
            ("org/added", folders[0], {}),
            ("long", folders[2], {"context_length": 200_000, "context_at_most": True}),
        )
    }
    monkeypatch.chdir(folders[1])
    print_fit(with_added(config, added), Home(tmp_path / "home"), ("org/added", "long", "."), False)
    lines = yaml.safe_load(capsys.readouterr().out.partition("In lmx.yaml:")[2])["models"]
    assert [(one["id"], one["source"]) for one in lines] == [
        ("org/added", str(folders[0])), ("long", str(folders[2])),
        ("qwen2.5-7b-4bit", str(folders[1])),
    ]  # fmt: skip
    assert lines[1]["context_length"] <= 131_072, "as long as it can be"
    assert Config.model_validate({"models": lines}).models[0].id == "org/added"


def test_folders_of_one_name_get_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, "1500MiB")
    folders = [str(write_model(tmp_path / name / "b", **LARGER)) for name in ("x", "y")]
    print_fit(config, Home(tmp_path / "home"), ("a", *folders), False)
    lines = yaml.safe_load(capsys.readouterr().out.partition("In lmx.yaml:")[2])["models"]
    assert [one["id"] for one in lines][-2:] == ["b-2", "b-3"], "b is served"


@pytest.mark.parametrize(
    ("name", "source", "model_id"),
    [
        ("qwen3-0.6b", "mlx-community/Qwen3-0.6B-4bit", "qwen3-0.6b"),
        ("Llama3.2-1B", "mlx-community/Llama-3.2-1B-Instruct-4bit", "llama3.2-1b"),
        ("mlx-community/Qwen2.5-7B-4bit",) * 3,
    ],
)
def test_what_is_not_served_gets_the_name_that_it_would_have(
    name: str, source: str, model_id: str
) -> None:
    entry = _entry(Config(), name, named_model(Config(), name), OWN)
    assert entry == {"id": model_id, "source": source}


def test_the_home_of_a_user_whom_nobody_knows_is_no_folder() -> None:
    for name in ("~no-such-user/m", "~no-such-user/m.gguf"):
        with pytest.raises(OperationError, match="check the path"):
            named_model(Config(), name)
