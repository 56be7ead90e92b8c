"""What a configuration needs that is installed only where it was requested."""

from importlib.util import find_spec

from lmx.supervisor.config.schema import Config


def missing_extras(config: Config) -> list[str]:
    """Return a sentence for each extra of lmx that ``config`` needs and that is not installed. lmx
    serves without them."""
    wanted = (
        (
            config.tracing.endpoint is not None,
            "opentelemetry.exporter.otlp.proto.http",
            "tracing.endpoint: nothing is traced without OpenTelemetry's SDK: "
            'pip install "lmx[otel]"',
        ),
        (
            config.server.advertise,
            "zeroconf",
            'server.advertise: nothing is announced without zeroconf: pip install "lmx[mdns]"',
        ),
    )
    return [words for needed, module, words in wanted if needed and not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False
