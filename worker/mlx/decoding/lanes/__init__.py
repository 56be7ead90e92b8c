"""Rows of unlike length, decoded in lanes that take turns."""
