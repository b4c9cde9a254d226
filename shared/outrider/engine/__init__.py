"""Running a language model: loading, the paged KV cache, and batched forward passes over chains and token trees.

Import this before torch. On a CPU, the threads of a matrix product wait for each other at its end. As long as they
spin there, another process that shares the cores keeps the last one from finishing: with other busy processes on two
cores, a forward pass took 20 times as long. So they go to sleep after some microseconds, unless the environment says
otherwise. The OpenMP runtime of PyTorch's wheels (libgomp) reads the variable once, when torch loads it.

transformers imports torchao where it is installed, needed or not. torchao then logs which of its kernels are not for
this machine, and torch what it would like torchao to do otherwise: neither is for the log of a service.
"""

import logging
import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
