"""The routes that have a model work: one handler for each kind of request."""
