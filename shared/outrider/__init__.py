"""Outrider: disaggregated speculative decoding whose output is exactly the target model's own."""

__version__ = "0.1.0"
