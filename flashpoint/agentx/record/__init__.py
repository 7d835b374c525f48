"""Traces from the session logs that coding agents keep on their user's own disk: block hashes and no text."""
