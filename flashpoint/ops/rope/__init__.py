"""Rotary position embedding with the two frequency sets of the model."""
