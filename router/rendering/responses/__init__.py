"""OpenAI's responses, whole and as streams."""
