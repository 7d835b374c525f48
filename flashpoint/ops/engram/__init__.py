"""N-gram memory: row ids, look-up and gate (spec 7)."""
