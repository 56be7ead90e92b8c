"""The router's view of the supervisor: the link, the models that there are, and waiting for
one."""
