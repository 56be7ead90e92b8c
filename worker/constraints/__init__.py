"""Holding an answer to a form, token by token."""
