"""RMS normalisation."""
