"""Instability measured and named, in our own runs and in anyone's torch loop."""
