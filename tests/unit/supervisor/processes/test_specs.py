"""From a model's configuration to its worker's spec."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.protocol.messages.peers import Peer, PeerList
from lmx.protocol.messages.specs import (
    AdapterSpec,
    PrefixCacheSpec,
    RankHost,
    RanksSpec,
    RescueSpec,
    RouterSpec,
    SpeculationSpec,
    WorkerSpec,
)
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.states import ModelKind
from lmx.protocol.wire import codec
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.secret_variables import COLLECTOR_HEADERS
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.memory.plan import MemoryPlan
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.processes.specs import router_spec, worker_spec
from lmx.supervisor.state.home import Home

PEERS = PeerList((Peer("studio", "https://studio.local:8000"),))


def config_of(**model: Any) -> Config:
    return Config.model_validate({"models": [{"id": "Org/m", "source": "/x", **model}]})


def spec_of(
    kind: ModelKind = ModelKind.CHAT, prefix_bytes: int = 7, plan: MemoryPlan | None = None,
    **model: Any,
) -> WorkerSpec:  # fmt: skip
    config, home = config_of(**model), Home(Path("/home/lmx"))
    plan = plan or MemoryPlan(99, prefix_bytes)
    adapters = (AdapterSpec("sql", "/lora"),)
    start = WorkerStart("i1", config.models[0], Path("/m"), kind, plan, adapters)
    return worker_spec(config, home, start, PEERS)


def test_a_spec_has_all_that_was_configured() -> None:
    configured = spec_of(
        top_k=20, min_p=0.1, repetition_penalty=1.1, tool_parser="hermes",
        chat_template_kwargs={"enable_thinking": False}, max_decode_stall_s=0.5,
        speculation={"method": "draft_model", "draft": "/d/../e", "num_assistant_tokens": 6},
        allow_checkpoint_code=True, allow_inexact=True, chat_template="/t.jinja",
        tokenizer_config={"eos_token": "x"}, tools={"calls_in_open_thought": False},
    )  # fmt: skip
    assert configured == replace(
        spec_of(), top_k=20, min_p=0.1, repetition_penalty=1.1, tool_parser="hermes",
        template_kwargs={"enable_thinking": False}, max_decode_stall_s=0.5,
        speculation=SpeculationSpec("/e", 6), allow_checkpoint_code=True, allow_inexact=True,
        chat_template="/t.jinja", tokenizer_config={"eos_token": "x"}, calls_in_open_thought=False,
    )  # fmt: skip


def test_each_rank_has_its_share() -> None:
    spec = spec_of(ranks=2, parallel="pipeline", prefix_bytes=8)
    assert spec.ranks == RanksSpec(2, Parallel.PIPELINE, config_of().timing.beat_timeout_s)
    assert spec.prefix_cache == PrefixCacheSpec(4)
    assert spec.memory_limit_bytes == 107 // 2
    assert spec_of().ranks is None


def test_a_machine_with_one_of_the_ranks_has_the_whole_share_of_its_own_plan() -> None:
    spec = spec_of(hosts=["studio", "attic"], prefix_bytes=8)
    assert spec.ranks is not None
    assert spec.ranks.hosts == (RankHost("studio", "studio.local"), RankHost("attic", ""))
    assert (spec.ranks.count, spec.memory_limit_bytes) == (3, 107)
    assert spec.prefix_cache == PrefixCacheSpec(8)


def test_only_rank_0_has_the_names_of_rdma_devices() -> None:
    devices = [[None, "rdma_en5"], ["rdma_en4", None]]
    spec = spec_of(hosts=["studio"], backend="jaccl", rdma_devices=devices)
    assert spec.ranks is not None
    assert spec.ranks.rdma_devices == (("", "rdma_en5"), ("rdma_en4", ""))


def test_the_bits_of_a_cache_are_those_that_were_planned_for() -> None:
    for bits in (None, 8):
        assert spec_of(plan=MemoryPlan(99, kv_bits=bits), kv_bits=4).kv_bits == bits


def test_a_worker_s_share_is_without_what_its_decoder_takes() -> None:
    for plan, share in (
        (MemoryPlan(99, 7), 106),
        (MemoryPlan(99, 7, decoder_bytes=50), 106),
        (MemoryPlan(99, 7, decoder_bytes=50, set_bytes=200), 150),
        # What is loaded is there in any case.
        (MemoryPlan(99, 7, decoder_bytes=50, set_bytes=120), 99),
        (MemoryPlan(99, 7, decoder_bytes=50, peak_bytes=300), 300),
    ):
        assert spec_of(plan=plan).memory_limit_bytes == share, plan


def test_a_spec_has_defaults_for_the_rest() -> None:
    spec = spec_of()
    assert (spec.top_k, spec.min_p, spec.template_kwargs) == (None, None, None)
    assert (spec.max_decode_stall_s, spec.speculation) == (0.3, SpeculationSpec(auto=True))
    assert not spec.allow_checkpoint_code
    assert spec.prefix_cache is not None
    assert (spec.prefix_cache.memory_bytes, spec.prefix_cache.disk_bytes) == (7, 4 * 1024**3)
    assert (spec.prefix_cache.disk_path or "").startswith("/home/lmx/cache/prefix/org_m")
    assert spec.adapters == (AdapterSpec("sql", "/lora"),)


def test_what_is_switched_off_is_not_in_the_spec() -> None:
    assert spec_of(prefix_cache={"disk": False}).prefix_cache == PrefixCacheSpec(7)
    assert spec_of(prefix_bytes=0).prefix_cache is None
    lookup = {"method": "prompt_lookup"}
    assert spec_of(speculation=lookup).speculation == SpeculationSpec(None)
    heads = {"method": "mtp"}
    assert spec_of(speculation=heads).speculation == SpeculationSpec(own_heads=True)
    assert spec_of(ModelKind.EMBEDDING, speculation=lookup).speculation is None
    assert spec_of(ModelKind.EMBEDDING).speculation is None
    assert spec_of(speculation={"method": "none"}).speculation is None
    assert spec_of(speculation=None).speculation is None
    assert spec_of(ranks=2).speculation is None
    rows = {"max_rows": 4}
    assert spec_of(speculation=rows).speculation == SpeculationSpec(max_rows=4, auto=True)


def test_variables_in_another_encoding_keep_no_router_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages are UTF-8, and what people have in their environment need not be."""
    monkeypatch.setenv(COLLECTOR_HEADERS[0], "key=\udce4")
    environment = {"DB_PASSWORD": "p\udce4ss", "\udce4_TOKEN": "t", "HOME": "/\udce4"}
    rescue, home = Invocation(None, True, Config).rescue(1.0, environment), Home(Path("/home"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        spec = router_spec(Config(), home, "r", listener, "1", "k", Keyring(), PeerList(), rescue)
    sent = codec.decode(codec.encode(spec)).message
    assert sent.rescue.environment == {"DB_PASSWORD": b"p\xe4ss", b"\xe4_TOKEN": "t"}
    assert sent.tracing_headers == "key=\\udce4"


def test_the_admin_key_is_the_configurations_else_the_files() -> None:
    home, own, keys = Home(Path("/home/lmx")), "k" * 16, ["a" * 16, "b" * 16]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        def spec(**security: Any) -> RouterSpec:
            config = Config.model_validate({"security": security})
            ring = Keyring.of(config.security.api_key_specs)
            rescue, peers = RescueSpec((), 1.0), PeerList()
            return router_spec(config, home, "r", listener, "1", "the file's", ring, peers, rescue)

        assert spec().admin_key == "the file's"
        assert spec().keyring.keys == ()
        assert spec(admin_key=own, api_keys=keys).admin_key == own
        assert spec(api_keys=keys).keyring.keys == tuple(map(ApiKey.of_secret, keys))
        shown = repr(spec(admin_key=own, api_keys=keys))
        assert not any(key in shown for key in (own, *keys)), "as a log or a traceback has it"
