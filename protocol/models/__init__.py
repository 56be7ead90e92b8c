"""What a model is for, how much memory it takes and how long it stays loaded: values that all
processes share."""
