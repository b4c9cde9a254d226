"""Load on a running coordinator over its public API: speculation beside plain decoding, as a client sees them.

Needs neither torch nor the services; the `outrider bench` command is a thin shell around it.
"""
