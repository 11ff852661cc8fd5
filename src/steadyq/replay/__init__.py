"""Where experience is kept: a single-frame ring on the learner's device, and how it is sampled."""
