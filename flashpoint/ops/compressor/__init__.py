"""Compressed entries from raw tokens."""
