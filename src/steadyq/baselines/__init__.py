"""Other libraries' algorithms, in our run folders."""
