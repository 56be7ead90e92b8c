"""What the requests of Ollama's API may hold. Source: Ollama's own documentation of its API."""
