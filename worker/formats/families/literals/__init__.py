"""Families whose arguments are literals: Python's, or those of Gemma's own."""
