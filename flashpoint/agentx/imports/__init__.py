"""Runs that other tools measured, read into run archives (`flashpoint import`)."""
