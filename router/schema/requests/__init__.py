"""The fields of each request, and their checks."""
