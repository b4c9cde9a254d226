"""The items of the replica streams as plain values."""
