"""Tests of undergrowth.data."""
