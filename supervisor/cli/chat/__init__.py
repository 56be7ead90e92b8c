"""A conversation with a model, over the HTTP API of the lmx that runs."""
