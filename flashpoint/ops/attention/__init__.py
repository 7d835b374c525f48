"""Sparse latent attention: one vector per key is both key and value, shared by all heads."""
