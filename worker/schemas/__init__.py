"""JSON schemas in the words of a grammar, and checked where a grammar has none. Pure."""
