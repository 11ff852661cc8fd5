"""One run: act, store, learn, regulate, record; in a folder that survives being killed."""
