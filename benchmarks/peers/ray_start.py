"""Start of Ray on this machine alone, as the benchmarks use it."""

from __future__ import annotations

import os


def start_ray(num_cpus: int = 4) -> None:
    """Start Ray without a dashboard; its workers have this process's priority.

    By default its workers run at 15 below it, which beside other work would measure the scheduler. `num_cpus` is what
    Ray counts, not what there is: it lets actors start beside a learner on two cores.
    """
    os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    import ray

    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=1 << 30,
    )
