"""Cache specs and block pools. No torch here: the virtual executor uses the same code."""
