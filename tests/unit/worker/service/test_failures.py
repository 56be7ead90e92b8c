"""What an engine's exceptions mean: no memory, no other try, or nothing of the kind."""

import errno

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.states import ModelKind
from lmx.worker.scheduling.engine_errors import is_out_of_memory
from lmx.worker.service.failures import load_failure


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def beside(error: Exception, context: Exception, *, suppressed: bool = False) -> Exception:
    error.__context__, error.__suppress_context__ = context, suppressed
    return error


NO_MEMORY = [
    MemoryError(),
    RuntimeError("std::bad_alloc"),
    RuntimeError("[malloc] Unable to allocate 8589934592 bytes."),
    RuntimeError(
        "[METAL] Command buffer execution failed: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
    ),
    RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OperationError(ErrorCode.INSUFFICIENT_MEMORY, "no"),
    caused(ValueError("could not"), MemoryError()),
    beside(ValueError("could not"), RuntimeError("std::bad_alloc")),
]

OTHERS = [
    ValueError("memory"),
    RuntimeError(
        "[metal::malloc] Attempting to allocate 99 bytes which is greater than the maximum "
        "allowed buffer size of 9 bytes."
    ),
    RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error"),
    OSError(errno.ENOSPC, "No space left on device"),
    OperationError(ErrorCode.MODEL_LOAD_FAILED, "std::bad_alloc, says somebody"),
    beside(ValueError("could not"), MemoryError(), suppressed=True),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_errors_that_are_each_others_cause() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


@pytest.mark.parametrize(
    ("error", "code", "permanent"),
    [
        (OperationError(ErrorCode.CONFIG_INVALID, "x"), ErrorCode.CONFIG_INVALID, True),
        (OperationError(ErrorCode.MODEL_SOURCE_INVALID, "x"), ErrorCode.MODEL_SOURCE_INVALID, True),
        (OperationError(ErrorCode.MODEL_LOAD_FAILED, "x"), ErrorCode.MODEL_LOAD_FAILED, False),
        (OperationError(ErrorCode.INSUFFICIENT_MEMORY, "x"), ErrorCode.INSUFFICIENT_MEMORY, False),
        (MemoryError(), ErrorCode.INSUFFICIENT_MEMORY, False),
        (RuntimeError("std::bad_alloc"), ErrorCode.INSUFFICIENT_MEMORY, False),
        (
            ValueError("Model type nosuch not supported. Error: No module named 'mlx_vlm...'"),
            ErrorCode.MODEL_SOURCE_INVALID,
            True,
        ),
        (KeyError("model_type"), ErrorCode.MODEL_SOURCE_INVALID, True),
        (KeyError("other"), ErrorCode.MODEL_LOAD_FAILED, False),
        (ValueError("Missing 2 parameters: \na,\nb."), ErrorCode.MODEL_SOURCE_INVALID, True),
        (
            ValueError("Received 2 parameters not in model: \na,\nb."),
            ErrorCode.MODEL_SOURCE_INVALID,
            True,
        ),
        (
            ValueError("Expected shape (1, 2) but received shape (2, 1) for parameter a"),
            ErrorCode.MODEL_SOURCE_INVALID,
            True,
        ),
        (
            RuntimeError("[load_safetensors] Invalid json header length /m/model.safetensors"),
            ErrorCode.MODEL_SOURCE_INVALID,
            True,
        ),
        (
            RuntimeError("[load_safetensors] Failed to open /m/model.safetensors"),
            ErrorCode.MODEL_LOAD_FAILED,
            False,
        ),
        (FileNotFoundError("No safetensors found in /m"), ErrorCode.MODEL_SOURCE_INVALID, True),
        (
            ValueError("Unrecognized processing class in /m. Can't instantiate a processor"),
            ErrorCode.MODEL_SOURCE_INVALID,
            True,
        ),
        (ConnectionError("x"), ErrorCode.MODEL_LOAD_FAILED, False),
        (ValueError("anything"), ErrorCode.MODEL_LOAD_FAILED, False),
        (AttributeError("'X' object has no attribute 'y'"), ErrorCode.MODEL_LOAD_FAILED, False),
        (OSError(28, "No space left on device"), ErrorCode.INSUFFICIENT_DISK, False),
    ],
    ids=repr,
)
def test_load_failures(error: Exception, code: ErrorCode, permanent: bool) -> None:
    failure = load_failure(error, ModelKind.CHAT)
    assert (failure.code, failure.permanent) == (code, permanent)
    assert failure.message


def test_a_model_of_another_kind_is_reported_in_words() -> None:
    error = AttributeError("'Model' object has no attribute 'language_model'")
    failure = load_failure(error, ModelKind.CHAT)
    assert failure.permanent
    assert failure.code is ErrorCode.CONFIG_INVALID
    assert "can't be served as chat" in failure.message
