"""Kernels for NVIDIA cards, written in Triton. Nothing here imports triton before it runs.

- :mod:`.block` is the efficient-attention block as a function that can be differentiated;
- :mod:`.forward` and :mod:`.backward` are its kernels, :mod:`.tiles` what they share;
- :mod:`.availability` says what keeps them from running.
"""
