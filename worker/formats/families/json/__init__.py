"""Families whose arguments are a JSON object."""
