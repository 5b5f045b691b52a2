"""Configs of other frameworks: read into ours, and ours written as theirs."""
