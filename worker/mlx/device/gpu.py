"""Whether MLX computes on a GPU."""

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether it does: by Metal, or by CUDA if that build of MLX is installed under Linux.
    Only wired memory is Metal's alone, and asks for Metal."""
    return bool(mx.default_device() == mx.Device(mx.gpu))
