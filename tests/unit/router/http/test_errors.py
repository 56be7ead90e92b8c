"""The table from codes to HTTP, and what a refusal becomes."""

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.messages.control import WorkerExited
from lmx.protocol.states import ExitCause
from lmx.router.http.api_family import OPENAI
from lmx.router.http.errors import http_error, http_status, rejection
from lmx.router.workers.links import _CODES, exit_error


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_form(code: ErrorCode) -> None:
    form = http_error(LmxError(code, "what"))
    assert 400 <= form.status < 600
    body = OPENAI.error_body(LmxError(code, "what"))
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code.value
    assert (form.retry_after is not None) == (form.status in (429, 503) and not form.not_again)


def test_no_validation_is_422() -> None:
    assert 422 not in {http_status(code) for code in ErrorCode}


@pytest.mark.parametrize(
    ("wait_s", "header"), [(None, "2"), (0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2")]
)
def test_retry_after_is_whole_seconds_and_at_least_one(wait_s: float | None, header: str) -> None:
    error = LmxError(ErrorCode.QUEUE_FULL, "", retry_after_s=wait_s)
    assert http_error(error).retry_after == header


def test_retry_after_is_kept_where_the_error_has_one() -> None:
    assert http_error(LmxError(ErrorCode.INTERNAL, "", retry_after_s=3)).retry_after == "3"


MAY_PASS = {
    # Too slow, or too many.
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.CLIENT_STALLED,
    ErrorCode.RATE_LIMIT_EXCEEDED,
    ErrorCode.QUEUE_FULL,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.MEDIA_TIMEOUT,
    # The model comes, or comes back, by itself.
    ErrorCode.MODEL_LOADING,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.MODEL_UNLOADED,
    ErrorCode.INSUFFICIENT_MEMORY,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.WORKER_KILLED,
    ErrorCode.WORKER_LOST,
    ErrorCode.WORKER_OUT_OF_MEMORY,
    # lmx itself comes back, or made a mistake.
    ErrorCode.SUPERVISOR_UNAVAILABLE,
    ErrorCode.SHUTTING_DOWN,
    ErrorCode.ROUTER_HUNG,
    ErrorCode.PEER_UNAVAILABLE,
    ErrorCode.PEER_LOST,
    ErrorCode.JOB_INTERRUPTED,
    ErrorCode.JOBS_UNAVAILABLE,
    ErrorCode.USAGE_UNAVAILABLE,
    ErrorCode.FILES_UNAVAILABLE,
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.INTERNAL,
}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_what_trying_again_cannot_mend_is_not_sent_again_by_itself(code: ErrorCode) -> None:
    """OpenAI's client libraries send every 408, 409, 429 and 5xx again unless told not to."""
    form = http_error(LmxError(code, ""))
    assert form.not_again is (code not in MAY_PASS)
    assert not (form.not_again and form.retry_after)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_what_can_never_be_is_final_whatever_its_code(code: ErrorCode) -> None:
    form = http_error(rejection(code, "m", retry_after_s=30.0, final=True))
    assert (form.not_again, form.retry_after) == (True, None)


def test_an_operator_s_word_has_a_time_all_the_same() -> None:
    form = http_error(LmxError(ErrorCode.MODEL_DRAINED, "", retry_after_s=300.0))
    assert (form.not_again, form.retry_after) == (True, "300")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.CONTEXT_LENGTH_EXCEEDED, RequestError),
        (ErrorCode.MODEL_NOT_FOUND, RequestError),
        (ErrorCode.QUEUE_FULL, UnavailableError),
        (ErrorCode.MODEL_UNLOADED, UnavailableError),
        (ErrorCode.ENGINE_ERROR, UnavailableError),
    ],
)
def test_refusals_become_the_client_s_fault_or_a_matter_of_time(
    code: ErrorCode, kind: type[LmxError]
) -> None:
    error = rejection(code, "m", param="p", retry_after_s=1.5)
    assert type(error) is kind
    assert (error.message, error.param, error.retry_after_s) == ("m", "p", 1.5)


@pytest.mark.parametrize("cause", list(ExitCause))
def test_every_end_of_a_worker_says_what_happened(cause: ExitCause) -> None:
    error = exit_error(WorkerExited("1", "tiny", cause, "status 9"))
    assert error.code is _CODES[cause]
    assert "'tiny'" in error.message
    assert "(status 9)" in error.message
    assert "()" not in exit_error(WorkerExited("1", "tiny", cause, "")).message


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (ExitCause.CRASH, 500),
        (ExitCause.HANG, 500),
        (ExitCause.OUT_OF_MEMORY, 503),
        (ExitCause.KILLED, 503),
        (ExitCause.EVICTED, 503),
    ],
)
def test_only_an_end_that_is_not_the_request_s_doing_invites_it_back(
    cause: ExitCause, status: int
) -> None:
    assert http_error(exit_error(WorkerExited("1", "tiny", cause, ""))).status == status
