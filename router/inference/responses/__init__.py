"""OpenAI's Responses API: the routes that make responses, and those of responses that are kept."""
