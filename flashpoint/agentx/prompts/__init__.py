"""Prompts for a replay: invented text whose prefixes are shared exactly as the trace's block ids say."""
