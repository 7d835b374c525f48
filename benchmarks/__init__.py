"""Speed measurements anyone can repeat; results in RESULTS.md."""
