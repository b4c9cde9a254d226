"""Messages and services, generated from proto/ by scripts/proto.sh."""
