"""Agent sessions: replay against a server, metrics, run archive, curve."""
