"""The linter: what a configuration cannot do, or will do unasked, said before it trains."""
