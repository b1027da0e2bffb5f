"""Memory of CUDA devices, as torch's caching allocator and its recorder tell of it."""
