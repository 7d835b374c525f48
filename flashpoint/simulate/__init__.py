"""A deployment in virtual time: the engine, caches, router and replay that serve, over a cost model."""
