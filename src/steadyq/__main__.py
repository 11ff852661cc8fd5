"""`python -m steadyq`."""

from steadyq.cli import main

main()
