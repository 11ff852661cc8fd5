"""An agent outside its run: as a file that other runtimes read."""
