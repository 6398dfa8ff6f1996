"""Data sets, the ways to spread them over devices, and the populations that come out."""

from undergrowth.data.bubbles import bubbles
from undergrowth.data.catalogue import describe, load, names
from undergrowth.data.dataset import Array, Dataset
from undergrowth.data.entry import Entry
from undergrowth.data.partition import Rule, parse_rule, partition
from undergrowth.data.pooled import Pooled
from undergrowth.data.population import Partitioned, Population
from undergrowth.data.public import drawn, unlabelled, without

__all__ = [
    "Array",
    "Dataset",
    "Entry",
    "Partitioned",
    "Pooled",
    "Population",
    "Rule",
    "bubbles",
    "describe",
    "drawn",
    "load",
    "names",
    "parse_rule",
    "partition",
    "unlabelled",
    "without",
]
