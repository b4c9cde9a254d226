"""The fast path for the Llama-like families on CUDA: one decoder block of few kernels, run from CUDA graphs.

Imported only where such a model runs on a GPU; Triton is needed here and nowhere else.
"""
