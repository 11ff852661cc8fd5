"""The paper: its tables, checked and recomputed."""
