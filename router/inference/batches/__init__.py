"""Batches: requests that are sent in a file, and answered when nobody else wants the model."""
