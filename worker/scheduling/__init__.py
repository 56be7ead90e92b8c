"""What the engine does next: the engine thread, the queue, rows and admission."""
