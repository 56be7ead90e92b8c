"""Convolutions as products of matrices, for a CPU.

mlx 0.32.4 computes the usual ones on a CPU so by itself, but those with gaps, and those that
lengthen, number by number: they take 24 and 6 times as long, and are most of what a vocoder
computes. The results are the same but for rounding. All that is unusual is left to mlx.
"""

from typing import Any

import mlx.core as mx

from lmx.worker.mlx.device.gpu import on_gpu

_mlx_conv1d = mx.conv1d
_mlx_conv_transpose1d = mx.conv_transpose1d


def use_matrix_products() -> None:
    """Have all models of this process computed so from now on. Does nothing on a GPU."""
    if not on_gpu():
        mx.conv1d, mx.conv_transpose1d = conv1d, conv_transpose1d


def conv1d(
    x: mx.array,
    w: mx.array,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    **more: Any,
) -> mx.array:
    """Return what ``mx.conv1d`` returns."""
    if more or stride != 1 or groups != 1 or dilation == 1:
        return _mlx_conv1d(x, w, stride, padding, dilation, groups, **more)
    padded = mx.pad(x, [(0, 0), (padding, padding), (0, 0)])
    length = padded.shape[1] - dilation * (w.shape[1] - 1)
    if length < 1:
        return _mlx_conv1d(x, w, stride, padding, dilation, groups)
    made = padded[:, :length] @ w[:, 0].T
    for tap in range(1, w.shape[1]):
        start = tap * dilation
        made = made + padded[:, start : start + length] @ w[:, tap].T
    # Else the products of many convolutions would exist at once: half a gigabyte for 3 s of sound.
    mx.eval(made)
    return made


def conv_transpose1d(
    x: mx.array,
    w: mx.array,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
    **more: Any,
) -> mx.array:
    """Return what ``mx.conv_transpose1d`` returns."""
    reach = w.shape[1] - 1 - padding
    if more or groups != 1 or dilation != 1 or reach < 0:
        return _mlx_conv_transpose1d(
            x, w, stride, padding, dilation, output_padding, groups, **more
        )
    batch, length, channels = x.shape
    gaps = mx.zeros((batch, length, stride - 1, channels), x.dtype)
    spread = mx.concatenate([x[:, :, None], gaps], axis=2).reshape(batch, -1, channels)
    spread = spread[:, : (length - 1) * stride + 1]
    padded = mx.pad(spread, [(0, 0), (reach, reach + output_padding), (0, 0)])
    made = _mlx_conv1d(padded, w[:, ::-1])
    mx.eval(made)
    return made
