"""GET /admin/live: all that changes, as one stream for the console."""
