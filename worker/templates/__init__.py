"""Prompts from conversations: chat templates, rendered in a process of their own."""
