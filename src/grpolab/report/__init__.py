"""After the runs: load, measure, decide, draw, write. Reads files, never another room's code."""
