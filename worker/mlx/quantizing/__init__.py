"""Quantizes a model folder, and measures what that costs. A program of its own: ``main``."""
