"""`asyncrl record`: write the episodes of a policy as a dataset in Minari's format."""

from __future__ import annotations

from dataclasses import dataclass, fields

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.options import Count, NotNegative, check_options
from asyncrl.show.numbers import of_return

OF_PLAYING = ("steps", "deterministic", "envs", "seed")
"""Options that a replay does not have, which is written as it was kept."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Options of `asyncrl record`."""

    run: str
    """Directory of a run, a checkpoint file, or a policy file."""

    out: str | None = None
    """Folder of the new dataset, which Minari loads by its name: datasets/hopper-medium-v0."""

    steps: Count = 100_000
    """Steps over all environments; the episodes in progress are then cut off."""

    deterministic: bool = True
    """Greedy actions; otherwise explore at the schedule's final rate, or draw from the policy."""

    replay: bool = False
    """Write the replay that the run has kept (--save-replay-buffer), in place of playing."""

    envs: Count = 8
    """Environments side by side."""

    seed: NotNegative = 0
    """Seed of environments and draws."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    def __post_init__(self) -> None:
        check_options(self)
        if not self.out:
            raise ValueError("out must be given: asyncrl record RUN --out datasets/hopper-medium-v0")
        for option in fields(self) if self.replay else ():
            value = getattr(self, option.name)
            if option.name in OF_PLAYING and value != option.default:
                raise ValueError(
                    f"{option.name} must be left out with replay, which is written as it was kept, got {value}"
                )


def make_parser() -> Parser:
    """Flags of `asyncrl record`."""
    return PolicyParser(
        "record RUN --out DIR [options]",
        "Write the steps of a policy as a dataset, which Minari loads. The environment and the network of a "
        "run may be pickles, which run code: use only runs of people whom you trust.",
        RecordOptions,
    )


def run(options: RecordOptions) -> None:
    """Record the episodes and print what they are."""
    from asyncrl.policies.record import record, record_replay

    assert options.out is not None
    if options.replay:
        recorded = record_replay(options.run, options.out, checkpoint=options.checkpoint)
    else:
        from asyncrl.policies.load import load_named

        policy, _ = load_named(options.run, options.checkpoint)
        print(f"policy       {policy.describe()}", flush=True)
        recorded = record(
            policy,
            options.out,
            steps=options.steps,
            deterministic=options.deterministic,
            seed=options.seed,
            num_envs=options.envs,
        )
    returns, mean = recorded.returns, "unknown: no episode has ended"
    if returns:
        mean = f"{of_return(sum(returns) / len(returns))} over {len(returns):,} whole episodes"
    print(
        f"return       {mean}\n"
        f"dataset      {recorded.folder}, {recorded.steps:,} steps, {recorded.episodes:,} episodes",
        flush=True,
    )
