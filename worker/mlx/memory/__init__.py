"""What a model will take in memory, estimated from its files before it is loaded. No MLX here."""
