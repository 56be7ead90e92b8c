"""The page at / for browsers: a chat, its files, and the description of the API."""
