"""What a model is for, what its KV cache takes and how long it stays: values all processes
share."""
