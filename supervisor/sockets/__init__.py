"""The control and the event socket, from both ends, and the socket that the router listens on."""
