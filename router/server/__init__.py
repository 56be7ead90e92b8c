"""The process: its start and end, its routes, its connections and the middleware of each
request."""
