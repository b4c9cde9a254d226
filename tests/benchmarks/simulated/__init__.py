"""Replicas that only wait, with set step times: a test double for what a coordinator costs. Not a model anywhere."""
