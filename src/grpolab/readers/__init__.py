"""Read other frameworks' configs, scripts and logs into our settings and metrics, without running anything."""
