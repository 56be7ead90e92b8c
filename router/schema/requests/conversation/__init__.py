"""What a conversation holds: its messages, their parts and the tools that it may call."""
