"""Rows of tokens: prefill, decode, beams and speculation."""
