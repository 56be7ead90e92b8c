"""How families of models write tool calls and reasoning: read, and as grammars."""
