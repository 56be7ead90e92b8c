"""Processes that do what may hang, crash or fill the memory, so that the worker can end them."""
