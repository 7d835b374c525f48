"""When a replay sends what: lanes of live sessions, as a pure object without clock, network or threads."""
