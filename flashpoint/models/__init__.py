"""One folder per model architecture: config, weights, cache spec, forward pass."""
