"""`asyncrl push`: put the policy of a run on the Hugging Face Hub, with a model card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.options import Count, NotNegative, check_options
from asyncrl.show.numbers import with_deviation

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Options of `asyncrl push`."""

    run: str
    """Directory of a run, a checkpoint file, a policy file, or hf://user/name."""

    repo: str
    """Repository of the hub, user/name; it is made if it does not exist."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    episodes: Count = 20
    """Greedy episodes to play for the return on the card."""

    seed: NotNegative = 0
    """Seed of the episodes."""

    critics: bool = False
    """Also push the critics, from which the policy's values are computed."""

    private: bool = False
    """Make a new repository private."""

    license: str = "unknown"
    """License on the card, in the hub's short form, such as apache-2.0."""

    def __post_init__(self) -> None:
        check_options(self)


def make_parser() -> Parser:
    """Flags of `asyncrl push`."""
    return PolicyParser(
        "push RUN REPO [options]",
        "Put the policy of a run on the Hugging Face Hub, with a model card: environment, algorithm, return over fresh "
        "episodes, and how to watch it. Log in before: hf auth login, or set HF_TOKEN.",
        PushOptions,
        {"repo": "repository of the hub, user/name; it is made if it does not exist"},
    )


def run(options: PushOptions, server: ForkServer) -> None:
    """Evaluate the policy and push it."""
    from asyncrl.cli.eval import EvalOptions, evaluate
    from asyncrl.policies import hub
    from asyncrl.policies.load import load_named

    policy, file = load_named(options.run, options.checkpoint)
    hub.require_pushable(policy, options.repo)
    print(f"policy       {policy.describe(file)}", flush=True)
    play = EvalOptions(run=options.run, episodes=options.episodes, seed=options.seed)
    # In the environment that the card names and the repository loads, not in those of the run's own evaluations.
    played = evaluate(policy, f"{hub.SCHEME}{options.repo.removeprefix(hub.SCHEME)}", play, server)
    reached = with_deviation(played["return_mean"], played["return_std"])
    print(f"return       {reached} over {played['episodes']} greedy episodes", flush=True)
    card = hub.model_card(policy, options.repo, played, options.license)
    url = hub.push(policy, options.repo, card, private=options.private, critics=options.critics)
    print(f"page         {url}", flush=True)
