"""Bodies of requests: read, limited, and parsed."""
