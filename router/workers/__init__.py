"""The router's links to workers: one request's stream, a task, and trying again."""
