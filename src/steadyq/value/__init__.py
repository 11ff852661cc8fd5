"""What is learned: the three axes of stability, and the step that joins them."""
