"""Which exceptions mean that the device failed."""

import pytest

from lmx.worker.scheduling.engine_errors import is_device_failure, is_out_of_memory

FAILED = "[METAL] Command buffer execution failed: "


@pytest.mark.parametrize(
    ("text", "device", "memory"),
    [
        (FAILED + "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallback)", True, False),
        (FAILED + "Innocent Victim (00000005)", True, False),
        (
            FAILED + "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            True,
            True,
        ),
        ("kIOGPUCommandBufferCallbackErrorPageFault", True, False),
        (
            "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum "
            "allowed buffer size of 8 bytes.",
            False,
            False,
        ),
        ("[malloc] Unable to allocate 9 bytes.", False, True),
        ("[matmul] Last dimension of first input must match", False, False),
    ],
)
def test_a_failed_command_buffer_is_distinguished_from_a_failed_allocation(
    text: str, device: bool, memory: bool
) -> None:
    error = RuntimeError(text)
    assert (is_device_failure(error), is_out_of_memory(error)) == (device, memory)
    wrapped = ValueError("a constraint failed")
    wrapped.__cause__ = error
    assert is_device_failure(wrapped) is device
