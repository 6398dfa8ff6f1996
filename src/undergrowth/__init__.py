"""Federated learning that weak devices can take part in."""
__version__ = "0.1.0"
