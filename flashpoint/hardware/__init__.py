"""Machines as data, the time a step takes on them, and an executor that only takes that time."""
