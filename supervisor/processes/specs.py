"""Builds the specs of child processes from the configuration."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from lmx.protocol.messages.keys import Keyring
from lmx.protocol.messages.peers import PeerList
from lmx.protocol.messages.ranks import StartRank
from lmx.protocol.messages.specs import (
    FilesSpec,
    LogSpec,
    PrefixCacheSpec,
    RankHost,
    RanksSpec,
    RescueSpec,
    RouterSpec,
    SpeculationSpec,
    WorkerSpec,
)
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.models.sampling import PARAMETERS
from lmx.protocol.states import MemoryWiring, ModelKind
from lmx.protocol.wire.codec import plain
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.secret_variables import COLLECTOR_HEADERS
from lmx.supervisor.config.sources import folder_path
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.sockets.reachable import host_name, mdns_labels
from lmx.supervisor.state.home import Home


def worker_spec(config: Config, home: Home, start: WorkerStart, peers: PeerList) -> WorkerSpec:
    """Return the spec of a model's worker. Its share of the memory is what the plan reserves for
    its process; for that of each rank, if there are several."""
    model, plan = start.model, start.plan
    kv_cache_bytes = plan.kv_cache_bytes
    if kv_cache_bytes is not None and model.hosts:
        kv_cache_bytes *= model.ranks  # It counts what all ranks have.
    return WorkerSpec(
        instance=start.instance,
        model_id=model.id,
        model_path=str(start.path),
        run_dir=str(home.run.path),
        log=_log_spec(config, home.worker_log(model.id)),
        engine=model.engine,
        engine_options=dict(model.engine_options),
        memory_limit_bytes=plan.worker_bytes // model.ranks_here,
        max_rows=model.max_rows,
        max_queue=model.max_queue,
        context_length=plan.context_tokens or model.context_length,
        default_max_tokens=model.default_max_tokens,
        max_tokens_limit=model.max_tokens_limit,
        kind=start.kind,
        **{name: getattr(model, name) for name in PARAMETERS},
        template_kwargs=dict(model.chat_template_kwargs) or None,
        tool_parser=model.tool_parser,
        chat_template=model.chat_template,
        tokenizer_config=dict(model.tokenizer_config) or None,
        allow_inexact=model.allow_inexact,
        calls_in_open_thought=model.tools.calls_in_open_thought,
        max_decode_stall_s=model.max_decode_stall_s,
        prefix_cache=_prefix_cache_spec(home, model, plan.prefix_cache_bytes // model.ranks_here),
        speculation=_speculation_spec(model, start.kind),
        kv_cache_bytes=kv_cache_bytes,
        kv_layers=plan.kv_layers,
        kv_bits=plan.kv_bits,
        wiring=MemoryWiring(config.memory.wire),
        max_queue_s=model.max_queue_s,
        # This is well before the watchdog would end the worker for it.
        render_timeout_s=min(
            config.timing.render_timeout_s,
            (model.stall_timeout_s or config.timing.stall_timeout_s) / 2,
        ),
        beat_interval_s=config.timing.beat_interval_s,
        orphan_grace_s=config.timing.orphan_grace_s,
        allow_checkpoint_code=model.allow_checkpoint_code,
        adapters=start.adapters,
        decode=config.media.decode_limits(model.media),
        ranks=_ranks_spec(config, model, peers),
    )


def _ranks_spec(config: Config, model: ModelConfig, peers: PeerList) -> RanksSpec | None:
    if model.ranks == 1:
        return None
    urls = {peer.name: peer.url for peer in peers.peers}
    hosts = [RankHost(name, urlsplit(urls.get(name, "")).hostname or "") for name in model.hosts]
    devices = tuple(tuple(name or "" for name in row) for row in model.rdma_devices)
    return RanksSpec(
        model.ranks, Parallel(model.parallel), config.timing.beat_timeout_s, tuple(hosts), devices
    )


def lent_spec(
    config: Config, home: Home, model: ModelConfig, path: Path, asked: StartRank, instance: str
) -> WorkerSpec:
    """Return the spec of a rank of another machine's model. What decides which code runs and which
    files are read is this machine's own configuration of the model."""
    prefix = asked.prefix_cache_bytes
    return WorkerSpec(
        instance=instance,
        model_id=model.id,
        model_path=str(path),
        run_dir=str(home.run.path),
        log=_log_spec(config, home.worker_log(model.id)),
        engine=model.engine,
        engine_options=dict(model.engine_options),
        memory_limit_bytes=asked.memory_limit_bytes,
        max_rows=model.max_rows,
        max_queue=model.max_queue,
        context_length=asked.context_length,
        chat_template=model.chat_template,
        tokenizer_config=dict(model.tokenizer_config) or None,
        allow_inexact=model.allow_inexact,
        max_decode_stall_s=asked.max_decode_stall_s,
        prefix_cache=PrefixCacheSpec(prefix) if prefix > 0 else None,
        kv_bits=asked.kv_bits,
        wiring=MemoryWiring(config.memory.wire),
        beat_interval_s=asked.beat_interval_s,
        allow_checkpoint_code=model.allow_checkpoint_code,
        ranks=RanksSpec(asked.count, asked.parallel, asked.silence_s),
    )


def _prefix_cache_spec(home: Home, model: ModelConfig, memory_bytes: int) -> PrefixCacheSpec | None:
    if memory_bytes <= 0:
        return None
    cache = model.prefix_cache
    if not cache.disk or model.ranks > 1:
        return PrefixCacheSpec(memory_bytes)
    return PrefixCacheSpec(memory_bytes, str(home.prefix_cache(model.id)), int(cache.disk_bytes))


def _speculation_spec(model: ModelConfig, kind: ModelKind) -> SpeculationSpec | None:
    speculation = model.speculation
    if speculation.method == "none" or kind is not ModelKind.CHAT:
        return None
    if model.ranks > 1:
        return None  # The ranks of a divided model would have to agree on each draft.
    return SpeculationSpec(
        draft_path=None if speculation.draft is None else str(folder_path(speculation.draft)),
        own_heads=speculation.method == "mtp",
        num_assistant_tokens=speculation.num_assistant_tokens,
        assistant_confidence_threshold=speculation.assistant_confidence_threshold,
        max_ngram_size=speculation.max_ngram_size,
        max_rows=speculation.max_rows,
        auto=speculation.method == "auto",
    )


def router_spec(
    config: Config,
    home: Home,
    router_id: str,
    listener: socket.socket,
    version: str,
    admin_key: str,
    keyring: Keyring,
    peers: PeerList,
    rescue: RescueSpec,
) -> RouterSpec:
    """Return the router's spec. The router must inherit the socket's descriptor under its
    number."""
    server, timing = config.server, config.timing
    machine = server.name or host_name()
    return RouterSpec(
        router_id=router_id,
        run_dir=str(home.run.path),
        log=_log_spec(config, home.router_log),
        listen_fd=listener.fileno(),
        host=server.host,
        port=listener.getsockname()[1],
        version=version,
        body_limit_bytes=int(server.body_limit_bytes),
        load_wait_s=server.load_wait_s,
        stall_timeout_s=server.reader_stall_timeout_s,
        worker_silence_s=server.worker_silence_s,
        ping_interval_s=server.ping_interval_s,
        shutdown_grace_s=timing.shutdown_grace_s,
        max_requests=server.max_requests,
        admin_key=config.security.admin_key_text or admin_key,
        sync_timeout_s=server.sync_timeout_s,
        jobs_path=str(home.jobs),
        jobs_max_age_s=config.jobs.max_age_s,
        jobs_max_count=config.jobs.max_count,
        jobs_max_bytes=int(config.jobs.max_bytes),
        files=FilesSpec(
            str(home.files),
            int(config.files.max_file_bytes),
            int(config.files.max_key_bytes),
            int(config.files.max_bytes),
        ),
        logs_dir=str(home.logs),
        allowed_hosts=_answers_under(config, machine),
        cors_origins=server.cors_origins,
        keyring=keyring,
        metrics_key=config.security.metrics_key_text,
        share_prefix_cache=config.security.share_prefix_cache,
        key_limits=config.rate_limits.per_key.spec,
        total_limits=config.rate_limits.total.spec,
        rescue=rescue,
        beat_interval_s=timing.beat_interval_s,
        orphan_grace_s=timing.orphan_grace_s,
        stable_prompts=server.stable_prompts,
        media=config.media.spec,
        capture_requests=server.capture_requests,
        show_rereads=server.show_rereads,
        tracing_endpoint=config.tracing.endpoint or "",
        machine=machine,
        peers=peers,
        tracing_headers=plain(next(filter(None, map(os.environ.get, COLLECTOR_HEADERS)), "")),
    )


def _answers_under(config: Config, machine: str) -> tuple[str, ...]:
    """Return the names that lmx answers under besides the machine's own."""
    server = config.server
    labels = mdns_labels(machine, host_name()) if server.advertise else ()
    return (*server.allowed_hosts, *(f"{label}.local" for label in labels))


def _log_spec(config: Config, path: Path) -> LogSpec:
    logs = config.logs
    return LogSpec(str(path), logs.level, int(logs.max_bytes), logs.keep)
