"""Ways to write a tool call that several families share: how each is read, and its grammar."""
