"""The greedy selection: the loop, what one pick changes, and products with the Gram."""
