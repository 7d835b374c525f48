"""Requests, scheduling and the step loop. No torch, no wall clock read directly."""
