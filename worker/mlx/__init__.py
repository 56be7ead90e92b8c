"""The engine: the only code that imports MLX."""
