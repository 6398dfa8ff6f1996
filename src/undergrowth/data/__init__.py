"""Data sets, the rules that partition them over devices, and the populations that result."""

from undergrowth.data.bubbles import draw_bubbles
from undergrowth.data.catalogue import describe, load, names
from undergrowth.data.dataset import Array, Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.labels import check_task_name
from undergrowth.data.loaders.files import MissingFilesError
from undergrowth.data.loaders.hugging_face import is_hugging_face
from undergrowth.data.loaders.table import is_table_file
from undergrowth.data.normalisation import normalise
from undergrowth.data.partition import PartitionRule, parse_rule, partition_dataset
from undergrowth.data.pooled import PooledPopulation, pool
from undergrowth.data.population import PartitionedPopulation, Population, device_names, is_population
from undergrowth.data.public import draw_public, hide_labels, remove_samples
from undergrowth.data.stream import Stream, StreamedPopulation, fixed_at, stream_population

__all__ = [
    "Array", "Dataset", "DatasetEntry", "MissingFilesError", "PartitionRule", "PartitionedPopulation",
    "PooledPopulation", "Population",
    "Stream", "StreamedPopulation", "check_task_name", "describe", "device_names", "draw_bubbles", "draw_public",
    "fixed_at", "hide_labels", "is_hugging_face", "is_population", "is_table_file", "load", "names", "normalise",
    "parse_rule", "partition_dataset", "pool", "remove_samples", "stream_population",
]  # fmt: skip
