"""Folders of safetensors files: read with every fault named, written shard by shard. Knows no model."""
