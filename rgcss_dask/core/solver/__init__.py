"""The greedy solver: the loop, the recurrences of a pick, and products with the Gram."""
