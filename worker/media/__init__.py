"""Pictures, sounds and videos of requests: their values, and the process that decodes them."""
