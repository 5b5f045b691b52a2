"""The linter finds traps in a configuration before it trains."""
