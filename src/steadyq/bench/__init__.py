"""How long things take: `steadyq bench`. Ratios in one run, medians after warm-up, fresh random inputs."""
