"""The API's description, made from the models that validate."""
