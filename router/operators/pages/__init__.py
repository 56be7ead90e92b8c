"""Pages for browsers: at / and at /docs."""
