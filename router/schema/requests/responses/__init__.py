"""The bodies of OpenAI's Responses API, and the requests to workers made of them."""
