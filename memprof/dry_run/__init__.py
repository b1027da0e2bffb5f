"""A CUDA run without a GPU: torch's own CUDA build above a library that stands in for CUDA.

``runtime/`` is that library in C, `build` compiles it for the torch that is there, `cards` says
what a card is, `launch` runs a program above it and `verdict` says whether it would fit.
"""
