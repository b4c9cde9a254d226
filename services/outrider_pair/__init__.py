"""The pair: a verifier and its draft in one process, which take turns on one device."""
