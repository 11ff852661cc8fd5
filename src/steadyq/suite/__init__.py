"""Many runs: their scores, the statistics over them, and the published numbers they stand beside."""
