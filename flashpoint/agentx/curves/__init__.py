"""Curves of throughput against interactivity: frontiers, readings between knots, comparisons, claims."""
