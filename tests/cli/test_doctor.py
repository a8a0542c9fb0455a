"""`asyncrl doctor`: every rule holds for the run made for it, and none for a healthy run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_runs import write_run

from asyncrl.algorithms import ALGORITHMS
from asyncrl.cli.main import main
from asyncrl.config import TrainerConfig
from asyncrl.options import option_help
from asyncrl.show.diagnosis import NOT_OF_LEARNING, RULES, diagnose
from asyncrl.show.evidence import Evidence, collect
from asyncrl.show.kept_run import KeptRun

RISES = tuple((10_000 * i, value) for i, value in enumerate((20.0, 200.0, 400.0, 470.0, 480.0, 478.0), 1))
FLAT = tuple((10_000 * i, 20.0 + i % 2) for i in range(1, 7))
FALLS = tuple((10_000 * i, value) for i, value in enumerate((20.0, 300.0, 480.0, 200.0, 90.0, 100.0), 1))
LATE = tuple((10_000 * i, value) for i, value in enumerate((20.0, 40.0, 60.0, 80.0, 120.0, 160.0), 1))
EARLY = tuple((10_000 * i, 0.9 + 0.01 * (i % 3)) for i in range(1, 7))
REPLAY = {"train/q_mean": 40.0, "train/q_max": 90.0, "train/value_low": 0.0, "train/value_high": 100.0}
SEGMENTS = {
    "train/approx_kl": 0.01,
    "train/clip_fraction": 0.1,
    "train/explained_variance": 0.8,
    "train/entropy": 0.5,
}

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "diverged": ("dqn", {"summary": {"state": "failed", "error": "[ASYNC022] The loss is NaN.\n  fix: x"}}),
    "failed": (
        "dqn",
        {"summary": {"state": "failed", "error": "[ASYNC002] The environment raised.\n  fix: x"}},
    ),
    "no update": ("dqn", {"summary": {"env_steps": 500, "updates": 0}, "metrics": {"train/n_updates": 0}}),
    "values run off": ("dqn", {"metrics": {"train/q_mean": 3500.0}}),
    "large policy steps": ("ppo", {"metrics": {"train/approx_kl": 0.09}}),
    "large policy steps, no limit": ("a2c", {"metrics": {"train/approx_kl": 0.09}}),
    "entropy gone": (
        "ppo",
        {
            "evaluations": FLAT,
            "options": {"ent_coef": 0.01},
            "first": {"train/entropy": 0.69},
            "metrics": {"train/entropy": 0.0},
        },
    ),
    "stale samples are thrown away": ("dqn", {"summary": {"staleness": {"discarded_fraction": 0.4}}}),
    "stale samples of one actor are thrown away": (
        "dqn",
        {"summary": {"staleness": {"discarded_fraction": 0.4}}, "trainer": {"num_actors": 1}},
    ),
    "old weights act": ("dqn", {"metrics": {"async/policy_lag_mean": 900.0}}),
    "old segments": ("impala", {"metrics": {"async/staleness_versions_mean": 6.0}}),
    "unlearned": ("dqn", {"evaluations": FALLS}),
    "unlearned, falling learning rate": (
        "ppo",
        {"evaluations": FALLS, "options": {"learning_rate_schedule": "linear"}},
    ),
    "value function explains nothing": (
        "ppo",
        {
            "evaluations": FLAT,
            "metrics": {"train/explained_variance": -0.2},
            "options": {"normalize_rewards": False},
        },
    ),
    "greedy is worse": ("ppo", {"evaluations": FLAT, "metrics": {"rollout/ep_rew_mean": 60.0}}),
    "another algorithm, with replay": ("ppo", {"evaluations": FLAT, "summary": {"env_steps": 100_000}}),
    "another algorithm, on policy": (
        "sac",
        {"env": "Pendulum-v1", "evaluations": FLAT, "summary": {"env_steps": 60_000}},
    ),
    "no exploration": (
        "dqn",
        {"options": {"exploration_steps": 10_000}, "evaluations": FLAT, "summary": {"env_steps": 49_999}},
    ),
    "not learning": ("sac", {"env": "Pendulum-v1", "evaluations": FLAT, "summary": {"env_steps": 40_000}}),
    "solved or stuck": (
        "ppo",
        {
            "evaluations": EARLY,
            "first": {"rollout/ep_rew_mean": -1.0},
            "metrics": {"rollout/ep_rew_mean": 0.9},
            "summary": {"env_steps": 100_000},
        },
    ),
    "actors die": ("dqn", {"summary": {"actor_restarts": 3}}),
    "still rising": ("dqn", {"evaluations": LATE}),
    "learner waits": ("dqn", {"metrics": {"async/learner_wait_fraction": 0.8, "time/fps": 300.0}}),
    "actors wait for updates": ("dqn", {"metrics": {"async/actor_wait_fraction": 0.95}}),
    "actors wait for passes": ("ppo", {"metrics": {"async/actor_wait_fraction": 0.95}}),
}
"""A run for every rule: what is different from one that is well."""


def make(path: Path, algo: str, different: Mapping[str, Any]) -> KeptRun:
    well = SEGMENTS if algo in ("ppo", "a2c", "impala") else REPLAY if algo == "dqn" else {}
    metrics = {
        "async/policy_lag_mean": 4.0,
        "async/staleness_mean": 90.0,
        "async/staleness_versions_mean": 1.0,
        **well,
    }
    lines = [
        {
            "time/total_timesteps": 6_000 * i,
            "train/n_updates": 3_000 * i,
            "async/learner_wait_fraction": 0.1,
            "async/actor_wait_fraction": 0.3,
            **metrics,
            **different.get("metrics", {}),
            **(different.get("first", {}) if i == 1 else {}),
        }
        for i in range(1, 11)
    ]
    summary = {
        "env_steps": 60_000,
        "updates": 30_000,
        "stop_reason": "total_steps",
        "eval": {"return_mean": different.get("evaluations", RISES)[-1][1]},
        **different.get("summary", {}),
    }
    kept = KeptRun(
        write_run(
            path,
            algo=algo,
            env=different.get("env", "CartPole-v1"),
            options=different.get("options"),
            trainer={"num_actors": 4, **different.get("trainer", {})},
            summary=summary,
            lines=lines,
            evaluations=different.get("evaluations", RISES),
        )
    )
    (path / "meta.json").write_text(json.dumps({"machine": {"cores": 8}}))
    return kept


def test_there_is_a_run_for_every_rule() -> None:
    assert list(RUNS) == [rule.name for rule in RULES]


@pytest.mark.parametrize("name", RUNS)
def test_the_rule_comes_first_for_its_run(name: str, tmp_path: Path) -> None:
    algo, different = RUNS[name]
    run = make(tmp_path / "x", algo, different)
    finding = diagnose(collect(run))[0]
    assert finding.name == name
    assert finding.sentence.endswith(".") and "{" not in "".join(vars(finding).values())
    known = {*option_help(TrainerConfig), *option_help(ALGORITHMS[algo])}
    assert finding.option in known or name == "failed"
    assert "?" not in finding.evidence + finding.change, finding


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_that_is_well_has_no_finding(algo: str, tmp_path: Path) -> None:
    assert diagnose(collect(make(tmp_path / "x", algo, {}))) == []


@pytest.mark.parametrize(
    ("algo", "options", "needed"),
    [("dqn", {"learning_starts": 7_000}, "7,000"), ("ppo", {"segment_length": 128}, "4,096")],
)
def test_a_run_without_an_update_is_told_the_steps_before_the_first(
    algo: str, options: dict[str, Any], needed: str, tmp_path: Path
) -> None:
    different = {**RUNS["no update"][1], "options": options, "trainer": {"envs_per_actor": 8}}
    finding = diagnose(collect(make(tmp_path / "x", algo, different)))[0]
    assert (finding.name, finding.change) == ("no update", f"far more than {needed}, from which it learns")


def test_a_run_that_reached_its_target_need_not_be_faster(tmp_path: Path) -> None:
    different = {"metrics": {"async/actor_wait_fraction": 0.95}, "summary": {"stop_reason": "target_return"}}
    assert diagnose(collect(make(tmp_path / "x", "dqn", different))) == []


def test_a_value_function_explains_no_variance_of_equal_returns(tmp_path: Path) -> None:
    unexplained = {"metrics": {"train/explained_variance": -0.2}, "options": {"normalize_rewards": False}}
    assert diagnose(collect(make(tmp_path / "solved", "ppo", unexplained))) == []
    found = diagnose(collect(make(tmp_path / "lost", "ppo", {**unexplained, "evaluations": FALLS})))
    assert "value function explains nothing" in [finding.name for finding in found]


def test_an_entropy_below_zero_is_that_of_a_density_and_no_finding(tmp_path: Path) -> None:
    for entropy, gone in ((0.3, True), (-2.0, False)):
        different = {**RUNS["entropy gone"][1], "metrics": {"train/entropy": entropy}}
        run = make(tmp_path / str(entropy), "ppo", {**different, "first": {"train/entropy": 8.5}})
        assert ("entropy gone" in [finding.name for finding in diagnose(collect(run))]) == gone


@pytest.mark.parametrize(
    ("high", "q_mean", "updates", "found"),
    [
        (0.05, 0.14, 5_000, True),
        (0.05, 0.052, 5_000, False),
        (0.05, 0.14, 900, False),
        (0.0, 0.05, 5_000, False),
        (0.0, 0.14, 5_000, True),
    ],
    ids=["thrice the bound", "nearly at it", "initial weights", "no reward yet", "grown without a reward"],
)
def test_values_of_small_rewards_are_judged_by_their_own_range(
    high: float, q_mean: float, updates: int, found: bool
) -> None:
    evidence = Evidence(q_mean=q_mean, value_low=0.0, value_high=high, updates=updates)
    findings = {finding.name: finding.evidence for finding in diagnose(evidence)}
    assert ("values run off" in findings) == found
    if found:
        assert findings["values run off"] == f"mean action value 0.14, possible are 0 to {high:g}"


def test_a_figure_that_is_missing_is_a_question_mark() -> None:
    (finding,) = (f for f in diagnose(Evidence(discarded=0.3, updates=1, actors=2)))
    assert finding.evidence == "30% of the steps discarded, staleness ? updates"


@pytest.mark.parametrize(
    ("name", "different"),
    [
        ("values run off", {"metrics": {"train/q_mean": 3e6, "train/value_high": None}}),
        ("large policy steps", {"options": {"target_kl": 0.02}}),
        ("stale samples are thrown away", {"trainer": {"num_actors": 1}}),
        ("old weights act", {"options": {"publish_interval": 10}}),
        ("unlearned", {"options": {"learning_rate_schedule": "linear"}}),
        ("value function explains nothing", {"options": {"normalize_rewards": True}}),
        ("greedy is worse", {"trainer": {"eval_deterministic": False}}),
        ("greedy is worse", {"trainer": {"eval_env_kwargs": {"size": 9}}}),
        ("no exploration", {"options": {"exploration_steps": 40_000}}),
        ("no exploration", {"options": {"exploration_steps": 10_000, "noisy": True}}),
        ("learner waits", {"trainer": {"num_actors": 8}}),
        ("actors wait for passes", {"options": {"epochs": 1}}),
    ],
)
def test_no_advice_is_given_that_is_followed_already(
    name: str, different: dict[str, Any], tmp_path: Path
) -> None:
    """The run of the rule, with `different`: bounds that are unknown, an option that has the advised value."""
    algo, of_rule = RUNS[name]
    merged = {key: {**of_rule.get(key, {}), **own} for key, own in different.items()}
    run = make(tmp_path / "x", algo, {**of_rule, **merged})
    assert name not in [finding.name for finding in diagnose(collect(run))]


def test_of_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    algo, different = RUNS["values run off"]
    run = make(tmp_path / "x", algo, different)
    assert main(["doctor", str(run.path)]) == 0
    assert capsys.readouterr().out == (
        "Action values are outside of what rewards and discount allow: bootstrapping amplifies their errors.\n"
        "  change    --dqn.learning-rate to a third of 0.001\n"
        "  evidence  mean action value 3,500, possible are 0 to 100\n"
    )
    assert main(["doctor", str(run.path), "--json"]) == 0
    assert [finding["name"] for finding in json.loads(capsys.readouterr().out)] == ["values run off"]


@pytest.mark.parametrize("content", [None, "[[["])
@pytest.mark.parametrize(
    "name", ["actors wait for passes", "large policy steps", "values run off", "old segments"]
)
def test_options_that_are_unknown_are_not_advised(
    name: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    algo, different = RUNS[name]
    file = make(tmp_path / "x", algo, different).path / "config.toml"
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert main(["doctor", str(file.parent), "--all"]) == 0
    out, err = capsys.readouterr()
    assert "?" not in out and "  change  " not in out
    assert err == (
        f"{file} is missing or damaged: the options of the run are unknown, so that no advice is given.\n"
    )


def test_the_most_serious_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path / "x y", "dqn", {"evaluations": FALLS, "summary": {"actor_restarts": 2}})
    assert main(["doctor", str(run.path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("It was better before") and f"1 more: asyncrl doctor '{run.path}' --all" in text
    assert main(["doctor", str(run.path), "--all"]) == 0
    assert "  change    --envs-per-actor to fewer, if memory was short\n" in capsys.readouterr().out


def test_nothing_stands_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(make(tmp_path / "x", "dqn", {}).path)]) == 0
    assert capsys.readouterr().out == "Nothing stands out.\n"


def test_a_run_that_rose_late_and_fell_is_not_called_rising_too(tmp_path: Path) -> None:
    values = (20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 400.0, 400.0, 400.0, 20.0, 20.0, 20.0)
    run = make(
        tmp_path / "x", "dqn", {"evaluations": [(5_000 * i, value) for i, value in enumerate(values, 1)]}
    )
    assert [finding.name for finding in diagnose(collect(run))] == ["unlearned"]


def test_one_option_has_one_advice(tmp_path: Path) -> None:
    different = {
        "summary": {"staleness": {"discarded_fraction": 0.4}},
        "metrics": {"async/learner_wait_fraction": 0.8},
    }
    findings = diagnose(collect(make(tmp_path / "x", "dqn", different)))
    assert [(finding.name, finding.option) for finding in findings] == [
        ("stale samples are thrown away", "num_actors")
    ]


def test_the_luck_of_the_best_of_many_evaluations_is_no_loss(tmp_path: Path) -> None:
    """Returns of a policy that does not change, with a deviation of 120 over single episodes."""
    rng = np.random.default_rng(0)
    names = set()
    for number in range(40):
        values = 200 + 150 * np.arange(16).clip(0, 4) / 4 + rng.normal(0, 120 / np.sqrt(5), 16)
        evaluations = [(5_000 * i, float(value)) for i, value in enumerate(values, 1)]
        summary = {"eval": {"return_mean": 350.0, "return_std": 120.0, "episodes": 20}}
        run = make(
            tmp_path / str(number),
            "dqn",
            {"evaluations": evaluations, "summary": summary, "trainer": {"eval_episodes": 5}},
        )
        names |= {finding.name for finding in diagnose(collect(run))}
    assert "unlearned" not in names


def test_the_final_evaluation_of_more_episodes_is_not_compared_with_the_best_of_few(tmp_path: Path) -> None:
    run = make(tmp_path / "x", "dqn", {"summary": {"eval": {"return_mean": 100.0, "return_std": 1.0}}})
    assert (collect(run).best, collect(run).final) == (479.0, 479.0)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in NOT_OF_LEARNING])
@pytest.mark.parametrize("how", ["stopped at its target", "above its target", "solved"])
def test_a_run_that_succeeded_needs_no_advice_about_learning(name: str, how: str, tmp_path: Path) -> None:
    algo, different = RUNS[name]
    last = different.get("evaluations", RISES)[-1][1]
    summary, trainer = dict(different.get("summary", {})), dict(different.get("trainer", {}))
    if how == "stopped at its target":
        summary["stop_reason"] = "target_return"
    elif how == "above its target":
        trainer["target_return"] = last - 1e6
    else:
        summary["reward_threshold"] = last - 1e6
    run = make(tmp_path / "x", algo, {**different, "summary": summary, "trainer": trainer})
    assert diagnose(collect(run)) == []


def test_a_run_below_its_threshold_gets_advice(tmp_path: Path) -> None:
    steps = {"metrics": {"train/approx_kl": 0.09}}
    for threshold, found in ((475.0, []), (500.0, ["large policy steps"])):
        run = make(tmp_path / f"{threshold}", "ppo", {**steps, "summary": {"reward_threshold": threshold}})
        assert [finding.name for finding in diagnose(collect(run))] == found


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((0.0, 0.3, 0.9, 0.95, 0.95, 0.96), []),
        ((0.0, 0.0, 0.0, 0.1, 0.0, 0.0), ["another algorithm, with replay", "not learning"]),
        ((0.0, 0.5, 0.9, 0.95, 0.5, 0.2), ["unlearned"]),
    ],
)
def test_returns_between_0_and_1_are_judged_by_their_own_size(
    values: tuple[float, ...], found: list[str], tmp_path: Path
) -> None:
    different = {
        "evaluations": [(10_000 * i, value) for i, value in enumerate(values, 1)],
        "metrics": {"rollout/ep_rew_mean": 0.0},
        "summary": {"env_steps": 100_000},
    }
    run = make(tmp_path / "x", "ppo", different)
    assert [finding.name for finding in diagnose(collect(run))] == found


def test_a_return_that_rose_before_the_first_evaluation(tmp_path: Path) -> None:
    algo, different = RUNS["solved or stuck"]
    (finding,) = diagnose(collect(make(tmp_path / "open", algo, different)))
    assert finding.evidence == "first return 0.915, best 0.915 of 6 evaluations; training -1.00 to 0.900"
    missed = {**different, "trainer": {"target_return": 0.95}}
    found = diagnose(collect(make(tmp_path / "missed", algo, missed)))
    assert [f.name for f in found] == ["another algorithm, with replay", "not learning"]
    lost = {**different, "evaluations": [*EARLY[:4], (50_000, 0.3), (60_000, 0.2)]}
    assert diagnose(collect(make(tmp_path / "lost", algo, lost)))[0].name == "unlearned"


def test_what_failed_or_is_slow_is_told_of_a_run_that_succeeded(tmp_path: Path) -> None:
    assert set(NOT_OF_LEARNING) <= {rule.name for rule in RULES}
    run = make(tmp_path / "x", "dqn", {"summary": {"actor_restarts": 3, "reward_threshold": 1.0}})
    assert [finding.name for finding in diagnose(collect(run))] == ["actors die"]
