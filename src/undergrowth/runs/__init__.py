"""From what a user describes to a finished run, its store, and a plan of it.

The modules, in an order in which they can be read:

what a user writes      `api`, `experiment_file`, `config` and the modules ending in `_section` (their base: `sections`,
                        `fields`), `validation_errors`, `own_objects`, `own_model`, `own_population`, `own_task`
what that becomes       `federation_builder` with the other builders, `topologies`, `server_links`, `server_training`,
                        `device_groups`, `unused_settings`; the result is a `federation`
a run                   `execution`, `opening`, `engine_choice`, `engine_facts`, `evaluation_interval`, `ongoing_run`,
                        `callback`, `progress`, `diagnosis`, `commands`
its models              `evaluation`, `run_models`, `tree_evaluation`, `relative_accuracy`, `stream_scores`
before and after it     `start_phase`; `personal_phase`, `personal_populations`, `personal_evaluation`, `final_models`
what is kept            `store`, `schema`, `checkpoint`, `formats`, `stored_experiment`, `run_inputs`, `lock`, `status`,
                        `atomic_files`; `result` and `listing` read it
a finished run          `new_device` and `new_device_data` adapt its model
a plan                  `planning`, `outline`, `preview`, `rehearsal`, `tree_price`, `advice`
"""

from undergrowth.runs.api import resume, run
from undergrowth.runs.listing import list_runs as list
from undergrowth.runs.new_device import AdaptedModel, adapt
from undergrowth.runs.result import Result, load
from undergrowth.runs.store import Store

__all__ = ["AdaptedModel", "Result", "Store", "adapt", "list", "load", "resume", "run"]
