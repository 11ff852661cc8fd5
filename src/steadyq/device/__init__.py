"""What a machine needs to be fast: captured graphs, streams, threads, kernels."""
