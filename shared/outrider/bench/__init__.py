"""Load on a running coordinator over its public API: speculation beside plain decoding, measured where a client sees it.

Needs neither torch nor the services; the `outrider bench` command is a thin shell around it.
"""
