"""The handlers of the questions that routers and the command line ask."""
