"""Which compressed entries a query attends to."""
