"""The control socket and the events socket, from both ends, and the socket on which the router
listens."""
