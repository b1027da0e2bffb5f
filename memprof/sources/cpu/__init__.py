"""Memory of CPU tensors: by the native part, or by a dispatch mode and weak references."""
