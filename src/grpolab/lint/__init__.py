"""The linter: traps in a configuration, found before it trains."""
