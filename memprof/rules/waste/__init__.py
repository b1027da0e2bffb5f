"""Rules about bytes that are there for no use without growing."""
