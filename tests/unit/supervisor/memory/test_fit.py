"""`lmx fit`: which settings let several models stay loaded at a time."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.views.fit import print_fit
from lmx.supervisor.config.schema import Config
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
