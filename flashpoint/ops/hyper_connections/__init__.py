"""Hyper-connections: four residual copies, mixed by learned, data-dependent weights."""
