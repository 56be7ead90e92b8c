"""The decoders, and the program that runs them. Nothing imports them: they read what strangers
send, in a process that may be killed."""
