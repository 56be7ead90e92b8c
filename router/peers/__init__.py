"""Other servers that answer requests of this machine's clients: what is known of them, which of
them is to answer, and how a request goes there."""
