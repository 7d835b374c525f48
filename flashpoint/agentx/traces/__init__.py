"""Recorded agent sessions: the trace format, its streams, statistics, and invented corpora."""
