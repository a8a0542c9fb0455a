"""Rules that diagnose a run: condition, sentence, option to change, and evidence.

The rules are in order of severity: what made learning impossible, what spoils it, what slows it down. The limits are
rules of thumb; the evidence of each rule states the figures so that a reader can judge them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.show.evidence import LEAST_RISE, Evidence
from asyncrl.show.numbers import of_return


@dataclass(frozen=True)
class Rule:
    """One possible fault of a run.

    Attributes:
        name: the rule's name.
        holds: whether a run has this fault.
        sentence: the fault in words; `{field}` is a figure of the evidence.
        option: the option to change, "" if none helps.
        change: the option's suggested value.
        evidence: the figures that show the fault.
    """

    name: str
    holds: Callable[[Evidence], bool]
    sentence: str
    option: str
    change: str
    evidence: str


@dataclass(frozen=True)
class Finding:
    """A rule that holds for a run, with its texts filled in."""

    name: str
    sentence: str
    option: str
    change: str
    evidence: str


def above(value: float | None, limit: float) -> bool:
    """Whether a figure is known and above the limit."""
    return value is not None and value > limit


def below(value: float | None, limit: float) -> bool:
    """Whether a figure is known and below the limit."""
    return value is not None and value < limit


def at_most(value: object, limit: float) -> bool:
    """Whether an option is a number and at most the limit; one that is none or a word is not."""
    return isinstance(value, int | float) and value <= limit


def _may_limit_divergence(e: Evidence) -> bool:
    """Whether a `target_kl` of 0.02 would change the run: of PPO, known by its clip range, unless it has one so low."""
    return "clip_range" in e.options and not at_most(e.options.get("target_kl"), 0.02)


def _values_run_off(e: Evidence) -> bool:
    """Whether action values lie outside of known bounds, by a tenth of their range; a discount of 1 gives none.

    A range below 1 counts as 1 while values may be those of the initial weights: early, or where all rewards were 0.
    """
    if e.q_mean is None or e.value_high is None or e.value_low is None:
        return False
    room = e.value_high - e.value_low
    if room == 0 or e.updates < 1_000:
        room = max(1.0, room)
    return e.q_mean > e.value_high + 0.1 * room or e.q_mean < e.value_low - 0.1 * room


def _enough(e: Evidence) -> bool:
    """Whether the run has enough steps and evaluations to judge its returns."""
    return e.steps >= 20_000 and e.evaluations >= 4


def _reached(e: Evidence) -> bool:
    """Whether the run stopped at its target: its speed matters less then."""
    return e.stop_reason in ("target_return", "target_training_return")


def _goals(e: Evidence) -> list[float]:
    """Returns that count as success: the run's target, and the threshold of its environment."""
    return [goal for goal in (e.target_return, e.reward_threshold) if goal is not None]


def _succeeded(e: Evidence) -> bool:
    """Whether the run ended at its target, or with a return that its target or its environment counts as solved."""
    return _reached(e) or (e.final is not None and any(e.final >= goal for goal in _goals(e)))


def _flat(e: Evidence) -> bool:
    """Whether the best return exceeds the first by no more than 10 % of the first, or than chance may."""
    if not _enough(e) or e.best is None or e.first is None:
        return False
    return e.best - e.first <= max(LEAST_RISE, 0.1 * abs(e.first), e.luck)


def _rose_early(e: Evidence) -> bool:
    """Whether the return was flat since the first evaluation, and that of training has risen by 30 % of its first.

    What was learned was then learned before the first evaluation.
    """
    if not _flat(e) or e.training_first is None or e.training_best is None:
        return False
    return e.training_best - e.training_first > max(LEAST_RISE, 0.3 * abs(e.training_first), e.luck)


def _never_rose(e: Evidence) -> bool:
    """Whether the return was flat, and nothing says that it had risen before: a known goal was missed."""
    return _flat(e) and (not _rose_early(e) or bool(_goals(e)))


def _greedy_is_worse(e: Evidence) -> bool:
    """Whether greedy actions have a return that is 30 % below that of actions that are drawn, by more than chance."""
    if e.steps < 20_000 or e.evaluations < 2 or not e.greedy or e.training is None or e.final is None:
        return False
    return e.training - e.final > max(LEAST_RISE, 0.3 * max(abs(e.training), abs(e.final)), e.luck)


LEARNED_WITHIN = {True: 100_000, False: 50_000}
"""Steps of the runs of default records, on policy and from replay, that the advice rests on (docs/results.md)."""


def _unlearned(e: Evidence) -> bool:
    """Whether a return that had risen ends 30 % of its rise below its best, by more than chance."""
    return _enough(e) and above(e.lost, 0.3) and not _never_rose(e)


def _certain(e: Evidence) -> bool:
    """Whether the entropy of a policy over choices has gone; that of a density may be negative, and says less."""
    if e.entropy is None or e.first_entropy is None or e.entropy < 0:
        return False
    return e.first_entropy > 0.05 and e.entropy < 0.05 * e.first_entropy


def _long_without_success(e: Evidence) -> bool:
    """Whether the return has not risen in so many steps that another algorithm is a better try than another option."""
    return _never_rose(e) and e.steps >= LEARNED_WITHIN[e.on_policy]


def _keeps_its_best(e: Evidence) -> bool:
    """Whether the return has risen and is still within 2 % of its best.

    The returns of a solved environment differ little, so that a good value function explains none of their variance.
    """
    return _enough(e) and not _never_rose(e) and below(e.lost, 0.02)


RULES = (
    Rule(
        "diverged",
        lambda e: "ASYNC022" in e.error,
        "Learning diverged: the loss or the weights became NaN.",
        "learning_rate",
        "a third of {options[learning_rate]}",
        "{error_line}",
    ),
    Rule(
        "failed",
        lambda e: e.state == "failed",
        "The run failed; mend that first.",
        "",
        "",
        "{error_line}",
    ),
    Rule(
        "no update",
        lambda e: e.updates == 0 and e.state != "running",
        "The run ended before its first update.",
        "total_steps",
        "far more than {first_update_steps:,}, from which it learns",
        "{steps:,} steps, 0 updates",
    ),
    Rule(
        "values run off",
        _values_run_off,
        "Action values are outside of what rewards and discount allow: bootstrapping amplifies their errors.",
        "learning_rate",
        "a third of {options[learning_rate]}",
        "mean action value {q_mean:,.4g}, possible are {value_low:,.4g} to {value_high:,.4g}",
    ),
    Rule(
        "large policy steps",
        lambda e: above(e.kl, 0.05) and _may_limit_divergence(e),
        "Each batch changes the policy too much.",
        "target_kl",
        "0.02",
        "KL divergence {kl:.3f} per batch (0.01 to 0.02 is usual), {clip_fraction:.0%} of the ratios clipped",
    ),
    Rule(
        "large policy steps, no limit",
        lambda e: e.on_policy and above(e.kl, 0.05) and not _may_limit_divergence(e),
        "Each batch changes the policy too much.",
        "learning_rate",
        "a third of {options[learning_rate]}",
        "KL divergence {kl:.3f} per batch (0.01 to 0.02 is usual)",
    ),
    Rule(
        "entropy gone",
        lambda e: _certain(e) and _never_rose(e),
        "The policy stopped exploring before it had learned.",
        "ent_coef",
        "0.01 or more, it is {options[ent_coef]}",
        "entropy fell from {first_entropy:.2f} to {entropy:.2f}; best return {best}, first {first}",
    ),
    Rule(
        "stale samples are thrown away",
        lambda e: above(e.discarded, 0.2) and e.actors > 1,
        "Much of what the actors produce is too old when the learner comes to it.",
        "num_actors",
        "fewer than {actors}",
        "{discarded:.0%} of the steps discarded, staleness {staleness:,.0f} updates",
    ),
    Rule(
        "stale samples of one actor are thrown away",
        lambda e: above(e.discarded, 0.2) and e.actors == 1,
        "Much of what the actor produces is too old when the learner comes to it.",
        "envs_per_actor",
        "fewer",
        "{discarded:.0%} of the steps discarded, staleness {staleness:,.0f} updates",
    ),
    Rule(
        "old weights act",
        lambda e: (
            "learning_starts" in e.options
            and above(e.policy_lag, 500)
            and e.options.get("discipline") != "lockstep"
            and not at_most(e.options.get("publish_interval"), 10)
        ),
        "The actors act with old weights.",
        "publish_interval",
        "10",
        "policy lag {policy_lag:,.0f} updates",
    ),
    Rule(
        "old segments",
        lambda e: e.on_policy and above(e.staleness_versions, 4),
        "Segments are several policy versions old when they are learned from.",
        "discipline",
        "lockstep",
        "staleness {staleness_versions:.1f} versions",
    ),
    Rule(
        "unlearned",
        lambda e: _unlearned(e) and e.options.get("learning_rate_schedule") != "linear",
        "It was better before: what was learned is being lost.",
        "learning_rate_schedule",
        "linear",
        "best return {best} after {best_steps:,} steps, last {final} (means of {window} evaluations)",
    ),
    Rule(
        "unlearned, falling learning rate",
        lambda e: _unlearned(e) and e.options.get("learning_rate_schedule") == "linear",
        "It was better before: what was learned is being lost.",
        "learning_rate",
        "a third of {options[learning_rate]}",
        "best return {best} after {best_steps:,} steps, last {final} (means of {window} evaluations)",
    ),
    Rule(
        "value function explains nothing",
        lambda e: (
            e.on_policy
            and e.steps >= 20_000
            and below(e.explained_variance, 0.1)
            and not e.options.get("normalize_rewards")
            and not _keeps_its_best(e)
        ),
        "The value function does not predict the returns.",
        "normalize_rewards",
        "yes",
        "explained variance {explained_variance:.2f} (1 is perfect, 0 no better than the mean)",
    ),
    Rule(
        "greedy is worse",
        _greedy_is_worse,
        "Greedy actions have a lower return than those of training, which are drawn.",
        "eval_deterministic",
        "no: a greedy policy without a memory may repeat a useless action for ever",
        "return {final} of greedy episodes, {training} of training",
    ),
    Rule(
        "another algorithm, with replay",
        lambda e: e.on_policy and _long_without_success(e),
        "The return has not risen in steps that suffice where this kind of algorithm learns.",
        "algo",
        "dqn for discrete actions, crossq for real-valued ones (images: sac); docs/algorithms/README.md shows returns",
        "first return {first}, best {best} of {evaluations} evaluations in {steps:,} steps",
    ),
    Rule(
        "another algorithm, on policy",
        lambda e: "samples_per_insert" in e.options and _long_without_success(e),
        "The return has not risen in steps that suffice where this kind of algorithm learns.",
        "algo",
        "ppo; docs/algorithms/README.md shows what learned where",
        "first return {first}, best {best} of {evaluations} evaluations in {steps:,} steps",
    ),
    Rule(
        "no exploration",
        lambda e: (
            _never_rose(e)
            and at_most(e.options.get("exploration_steps"), 0.5 * e.steps)
            and not e.options.get("noisy")
        ),
        "The return has not risen since the first evaluation.",
        "exploration_steps",
        "more than {options[exploration_steps]:,}, a tenth to a half of the run's steps",
        "first return {first}, best {best} of {evaluations} evaluations",
    ),
    Rule(
        "not learning",
        _never_rose,
        "The return has not risen since the first evaluation.",
        "learning_rate",
        "three times or a third of {options[learning_rate]}",
        "first return {first}, best {best} of {evaluations} evaluations",
    ),
    Rule(
        "solved or stuck",
        lambda e: _rose_early(e) and not _goals(e) and not _unlearned(e),
        "The return rose before the first evaluation and no further: it is solved, or the policy is stuck.",
        "target_return",
        "the return that counts as solved: a run ends there, and doctor advises one that ends below",
        "first return {first}, best {best} of {evaluations} evaluations; training {training_first} to {training_best}",
    ),
    Rule(
        "actors die",
        lambda e: e.restarts > 0,
        "Actors were killed and started again; actors/*.log says what they printed.",
        "envs_per_actor",
        "fewer, if memory was short",
        "{restarts} restarts",
    ),
    Rule(
        "still rising",
        lambda e: (
            e.stop_reason in ("total_steps", "max_seconds")
            and _enough(e)
            and not _never_rose(e)
            and not above(e.lost, 0.3)
            and e.early_best is not None
            and above(e.late_best, e.early_best + max(0.05 * e.spread, e.luck))
        ),
        "The return was still rising at the end.",
        "total_steps",
        "{twice:,}",
        "best return {early_best} in the first two thirds, {late_best} in the last",
    ),
    Rule(
        "learner waits",
        lambda e: (
            above(e.learner_waits, 0.5)
            and not above(e.actors_wait, 0.5)
            and e.actors < e.cores
            and not _reached(e)
        ),
        "The learner waits for steps: the environments are the bottleneck.",
        "num_actors",
        "more than {actors}, up to the machine's cores",
        "the learner waits {learner_waits:.0%} of the time, {steps_per_second:,.0f} steps/s",
    ),
    Rule(
        "actors wait for updates",
        lambda e: (
            "samples_per_insert" in e.options
            and above(e.actors_wait, 0.8)
            and not above(e.learner_waits, 0.2)
            and not _reached(e)
        ),
        "The actors wait for the learner: updates are the bottleneck.",
        "samples_per_insert",
        "less than {options[samples_per_insert]}, if steps are cheap",
        "actors wait {actors_wait:.0%} of the time, the learner {learner_waits:.0%}",
    ),
    Rule(
        "actors wait for passes",
        lambda e: (
            e.on_policy
            and above(e.actors_wait, 0.8)
            and not at_most(e.options.get("epochs", 1), 1)
            and not _reached(e)
        ),
        "The actors wait for the learner: its passes over a batch are the bottleneck.",
        "epochs",
        "less than {options[epochs]}, if steps are cheap",
        "actors wait {actors_wait:.0%} of the time",
    ),
)
"""All rules, the most serious first."""


NOT_OF_LEARNING = (
    *("diverged", "failed", "no update", "actors die"),
    *("learner waits", "actors wait for updates", "actors wait for passes"),
)
"""Names of the rules about faults and speed. A run that succeeded needs no advice of the others, about learning."""


def diagnose(evidence: Evidence) -> list[Finding]:
    """Findings of the rules that hold, the most serious first; of a run that succeeded those about faults and speed.

    Of the findings that change one option only the first is given: another one's advice would be the opposite, or be
    void once the first was followed.
    """
    found: list[Finding] = []
    rules = [rule for rule in RULES if rule.name in NOT_OF_LEARNING or not _succeeded(evidence)]
    for rule in rules:
        if rule.holds(evidence) and not (rule.option and rule.option in {f.option for f in found}):
            found.append(_finding(rule, evidence))
    return found


RETURNS = (
    *("first", "best", "final", "early_best", "late_best"),
    *("training", "training_first", "training_best"),
)
"""Figures of the evidence that are returns."""


def _finding(rule: Rule, evidence: Evidence) -> Finding:
    known = {name: value for name in RETURNS if (value := getattr(evidence, name)) is not None}
    figures = _Figures(
        vars(evidence)
        | {name: of_return(value) for name, value in known.items()}
        | {
            "error_line": evidence.error.partition("\n")[0] or evidence.state,
            "options": _Figures(evidence.options),
            "first_update_steps": evidence.first_update_steps,
            "twice": 2 * evidence.steps,
        }
    )
    texts = (text.format_map(figures) for text in (rule.sentence, rule.change, rule.evidence))
    sentence, change, shown = texts
    if not evidence.options:  # no advice on values that are unknown
        return Finding(rule.name, sentence, "", "", shown)
    return Finding(rule.name, sentence, rule.option, change, shown)


class _Unknown:
    """Placeholder for an unknown figure; formats as a question mark."""

    def __format__(self, form: str) -> str:
        return "?"


class _Figures(dict[str, object]):
    """Figures by name; a missing one or None formats as a question mark."""

    def __getitem__(self, name: str) -> object:
        value = self.get(name)
        return _Unknown() if value is None else value

    def __missing__(self, name: str) -> object:
        return _Unknown()
