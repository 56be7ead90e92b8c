"""Embedding and rerank models."""
