"""A model in memory: loading it, its tokenizer and its prompts."""
