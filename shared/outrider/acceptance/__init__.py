"""The coordinator's decisions in plain Python: token trees, proposals, acceptance, stopping, n-gram guesses. No torch, grpc or redis."""
