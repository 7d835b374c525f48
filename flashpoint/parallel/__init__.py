"""How one model is spread over accelerators."""
