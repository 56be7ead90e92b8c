"""Starting lmx: in the foreground and in the background, with what, and in whose place."""
