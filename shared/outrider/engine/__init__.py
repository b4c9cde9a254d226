"""Running a language model: loading, the paged KV cache, and batched forward passes over chains and token trees."""
