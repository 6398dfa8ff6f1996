"""Tests of the loaders, on small files in the public formats."""
