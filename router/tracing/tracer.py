"""Makes spans of requests and sends them to an OpenTelemetry collector, by OTLP over HTTP.

The SDK's own thread sends them, from a queue of limited length: when the collector is slow or gone,
spans are dropped and requests notice nothing. The standard variables ``OTEL_*`` say how (samplers,
names, time limits, certificates, the length of the queue); whether, and where to, is the
configuration's.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

from lmx.router.http.endpoint import Endpoint
from lmx.router.http.outcome import CLIENT_LEFT, Outcome, RequestContext
from lmx.router.jobs.live import LiveRequest
from lmx.router.tracing.spans import attributes, intervals, span_name

_PATH: Final = "/v1/traces"

_EARLIER: Final = TraceContextTextMapPropagator()


class Tracer:
    """Begins and ends the spans of requests. Used from one event loop only; nothing here waits."""

    def __init__(self, endpoint: str, headers: str, version: str) -> None:
        """``endpoint`` is the collector's address, with or without OTLP's path. ``headers`` are in
        the form of ``OTEL_EXPORTER_OTLP_HEADERS``."""
        named = os.environ.get("OTEL_SERVICE_NAME", "lmx")
        resource = Resource.create({SERVICE_NAME: named, SERVICE_VERSION: version})
        # It logs each `tracestate` that it doesn't understand, whole, before any key was checked.
        logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
        # The router ends within its own bounds: close() is called, and not at the exit.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(
            endpoint=url if url.endswith(_PATH) else url + _PATH,
            headers=parse_env_headers(headers, liberal=True) if headers else None,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lmx", version)

    def begin(self, headers: Mapping[str, str]) -> Span:
        """Begin the span of a request, as a part of its client's trace if it came with one
        (``traceparent``)."""
        parent = _EARLIER.extract(headers, Context())
        return self._tracer.start_span("request", parent, SpanKind.SERVER)

    def trace_id(self, span: Span) -> str:
        """Return the id of a span's trace, as log lines have it."""
        return format_trace_id(span.get_span_context().trace_id)

    def end(
        self,
        span: Span,
        endpoint: Endpoint,
        context: RequestContext,
        live: LiveRequest | None,
        outcome: Outcome,
        status: int,
    ) -> None:
        """End the span of a request, with those of its phases as its children."""
        if span.is_recording():
            ended_s, ended_ns = time.monotonic(), time.time_ns()
            span.update_name(span_name(endpoint, live))
            span.set_attributes(attributes(endpoint, context, live, outcome, status))
            if status >= 500 or (status == 200 and outcome.error not in (None, CLIENT_LEFT)):
                span.set_status(StatusCode.ERROR)
            inside = set_span_in_context(span, Context())
            for one in () if live is None else intervals(live, outcome, ended_s):
                began_ns, phase_ns = (
                    ended_ns - int((ended_s - at_s) * 1e9) for at_s in (one.began_s, one.ended_s)
                )
                child = self._tracer.start_span(one.phase.value, inside, start_time=began_ns)
                child.end(max(began_ns, phase_ns))
        span.end()

    def close(self, grace_s: float) -> None:
        """Send what is left, for at most ``grace_s``; what a collector has not taken by then is
        lost."""
        # A collector that takes the connection and says nothing holds the SDK's own end for longer.
        ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(grace_s)
