"""The causes of growth, one file each: what makes tensors or graphs become more in every step."""
