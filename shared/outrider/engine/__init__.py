"""Running a language model: loading, the paged KV cache, and batched forward passes over chains and token trees.

Import this before torch. On a CPU, the threads of a matrix product wait for each other at its end, and as long as
they spin there, another process that shares the cores keeps the last one from finishing: with two busy processes on
two cores a forward pass took 20 times as long. So they sleep instead, unless the environment says otherwise, which
costs nothing measurable on an idle machine. The OpenMP runtime reads the variable once, when torch loads it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
