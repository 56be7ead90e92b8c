"""Pictures, sounds and videos in prompts: their tokens, and what the model makes of them."""
