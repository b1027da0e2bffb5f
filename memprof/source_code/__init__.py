"""The user's source files: parsed once, searched for idioms, followed, and patched."""
