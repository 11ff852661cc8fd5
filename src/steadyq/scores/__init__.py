"""Published scores, and statistics over scores."""
