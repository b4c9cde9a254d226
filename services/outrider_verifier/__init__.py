"""The verifier service: holds the target model and judges proposals."""
