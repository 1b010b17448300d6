"""What a model is told, and how its answer is read: the same context gives the same prompt."""
