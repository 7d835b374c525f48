"""Codecs of the official formats: FP8 activations and window KV, FP4 compressed KV and index keys."""
