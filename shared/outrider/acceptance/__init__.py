"""The coordinator's decisions in plain Python: trees, proposals, acceptance, stopping, n-gram guesses."""
