"""An answer as clients take it: whole, or in chunks. Pure."""
