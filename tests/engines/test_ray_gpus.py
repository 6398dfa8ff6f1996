"""Workers of the Ray engine on GPUs, as Ray assigns them. Ray believes that there are two, and torch uses the CPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from undergrowth.engines import EngineSettings, RayEngine

from .obedient import jobs, world

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES")
        ray.init(
            "local", num_cpus=1, num_gpus=2, include_dashboard=False, object_store_memory=80_000_000,
            log_to_driver=False, logging_level="error",
        )  # fmt: skip
        yield
        ray.shutdown()


def seen(worker: Any) -> tuple[str | None, dict[str, float], tuple[bool, bool]]:
    """The GPUs that a worker sees, the resources that Ray assigned to it, and its settings of torch."""
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_runtime_context().get_assigned_resources(), tf32


@pytest.mark.parametrize(("workers", "on_each"), [(None, [1, 1]), (3, [1, 2])])
def test_every_worker_sees_one_gpu_and_shares_it_with_few(two_gpus, tmp_path, workers, on_each, monkeypatch):
    from undergrowth.engines.ray_cluster import worker_pool

    asked: list[str] = []
    pool = worker_pool.RayWorkerPool
    monkeypatch.setattr(pool, "_request", on_the_cpu(pool._request, asked))
    engine = RayEngine(EngineSettings(workers=workers, torch_devices=("cuda",), tf32=workers == 3))
    engine.open(world())
    try:
        assert list(engine.run(jobs(tmp_path)))
        members = engine._pool.members
        found = ray.get([member.actor.__ray_call__.remote(seen) for member in members])
    finally:
        engine.close()
    assert set(asked) == {"cuda"}, "a worker sees one GPU, the first"
    visible = Counter(one for one, _, _ in found)
    assert set(visible) == {"0", "1"} and sorted(visible.values()) == on_each
    assert [given for _, given, _ in found] == len(found) * [{"GPU": 0.5 if workers == 3 else 1.0}], "and no CPU"
    assert {tf32 for _, _, tf32 in found} == {(workers == 3, workers == 3)}


def on_the_cpu(request: Any, asked: list[str]) -> Any:
    """Requests GPUs from Ray, but has torch use the CPU there."""

    def go(pool: Any, count: int) -> None:
        asked.append(pool.torch_device)
        pool.torch_device = "cpu"
        request(pool, count)
        pool.torch_device = "cuda"

    return go


def test_a_part_of_a_gpu_is_never_more_than_ray_can_give():
    from undergrowth.engines.ray_cluster.worker_pool import gpu_fraction

    assert [gpu_fraction(workers, 2) for workers in (None, 1, 2, 3, 4, 5, 14)] == [1, 1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 7]
    assert gpu_fraction(8, 0) == gpu_fraction(None, 0) == 1, "there is none yet, so a machine with one is waited for"
