"""Executors: what runs a StepPlan."""
