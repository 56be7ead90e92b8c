"""Families with a tag around each argument."""
