"""Every setting of a run: its type, its range and one sentence. The values live in `conf/` only."""
