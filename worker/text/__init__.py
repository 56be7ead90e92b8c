"""Text from tokens, and JSON found in text. Pure."""
