"""Pages and figures a person looks at."""
