"""Trees: building them."""

from undergrowth.topology.tree import ROOT, Tree, tree

__all__ = ["ROOT", "Tree", "tree"]
