"""What requests may hold, and what answers do: the models that validate and that OpenAPI shows."""
