"""The single writer: what becomes of each model, and which of them have the memory."""
