"""HTTP: the APIs agents speak, in front of the engine."""
