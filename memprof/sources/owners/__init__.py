"""Whose bytes they are: parameters, gradients, optimizer state, activations, inputs."""
