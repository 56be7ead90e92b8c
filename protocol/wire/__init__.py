"""How messages travel: the encoding, the sockets and their paths."""
