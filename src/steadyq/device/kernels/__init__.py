"""Triton kernels and the plain texts they equal."""
