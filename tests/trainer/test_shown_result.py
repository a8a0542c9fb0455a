"""Display of a result: a line, a card, an episode on request."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from fakes import FixedLength
from small_records import small
from waiting import PATIENCE_SECONDS

from asyncrl import Trainer, errors
from asyncrl.envs.source import EnvSource
from asyncrl.policies import film
from asyncrl.run.result import TrainResult, curve_html


@pytest.fixture(scope="module")
def result() -> TrainResult:
    options = {
        "num_actors": 1,
        "envs_per_actor": 4,
        "http": "off",
        "eval_interval_steps": 1_000,
        "eval_episodes": 2,
    }
    dqn = small("dqn", learning_starts=200, samples_per_insert=4.0)
    trainer = Trainer("CartPole-v1", dqn, target_eval_episodes=3, **options)
    return trainer.learn(total_steps=4_000)


def test_a_result_is_one_line_and_a_card(result: TrainResult) -> None:
    text, html = repr(result), result._repr_html_()
    assert text.startswith("TrainResult(ended by total_steps; final return ") and "\n" not in text
    assert result.evaluation is not None and result.best is not None
    for part in (f"{result.evaluation.return_mean:,.1f}", f"{result.best.return_mean:,.1f}", "updates"):
        assert part in text and part in html
    assert (
        html.count("<circle") == len(result.evaluations) >= 4
        and "dqn CartPole-v1 seed 0: total_steps" in html
    )
    assert not re.search(r"<script|https?:|url\(", html)
    assert result.returns and result.returns[-1][0] <= result.summary["env_steps"]


class Rendering(FixedLength):
    """Environment with a render mode that must not be built for a card."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self) -> None:
        raise AssertionError("this environment cannot be built")


def broken() -> Any:
    raise AssertionError("a card builds no environment")


PLAYS = "result.episode() plays the best of three"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (Rendering, f"{PLAYS}</td>"),
        (FixedLength, None),
        (broken, f"{PLAYS}, if the environment renders</td>"),
    ],
)
def test_the_card_names_the_film_where_it_has_none(result: TrainResult, env: Any, text: str | None) -> None:
    policy = copy.copy(result.policy)
    policy.source = EnvSource.from_user(env)
    html = dataclasses.replace(result, policy=policy, best=None)._repr_html_()
    assert text in html if text else PLAYS not in html
    assert "<video" not in html and PLAYS not in repr(result)


def test_the_card_shows_the_best_episode_and_plays_it_once(
    result: TrainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    fresh = dataclasses.replace(result)
    html = fresh._repr_html_()
    assert (
        html.count('src="data:video/mp4;base64,') == 1 and "steps</figcaption>" in html and PLAYS not in html
    )
    monkeypatch.setattr(film, "film", lambda *_: pytest.fail("it was played already"))
    assert fresh._repr_html_() == html


def test_a_card_is_shown_also_where_the_environment_is_unknown_by_now(result: TrainResult) -> None:
    policy = copy.copy(result.policy)
    policy.source = EnvSource("Gone-v0", "id", b"Gone-v0")
    assert "if the environment renders" in dataclasses.replace(result, policy=policy)._repr_html_()
    policy.source = EnvSource.from_user("CartPole-v1").changed({"sutton_barto_reward": True}, [])
    assert "<video" in dataclasses.replace(result, policy=policy, best=None)._repr_html_()


def test_a_curve_has_both_lines_over_the_same_steps() -> None:
    html = curve_html([(0, 0.0), (100, 10.0)], [(0, 5.0), (50, float("nan")), (100, 10.0)])
    assert re.findall(r'points="([^"]+)"', html) == ["8.0,80.0 712.0,8.0", "8.0,152.0 712.0,8.0"]
    assert curve_html([(0, 1.0)], []) == ""


def test_the_best_of_a_few_episodes_is_a_film(result: TrainResult) -> None:
    pytest.importorskip("imageio_ffmpeg")
    best = result.episode(episodes=2, max_seconds=PATIENCE_SECONDS)
    assert best.video[4:8] == b"ftyp" and best.length == best.return_sum and best.length >= 8
    assert (
        'src="data:video/mp4;base64,' in best._repr_html_() and f"{best.length} steps" in best._repr_html_()
    )


def test_the_film_is_of_the_highest_return(result: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    returns: Iterator[float | None] = iter([None, -100.0, 0.0, -5.0])
    monkeypatch.setattr(film, "_one", lambda *arguments: film.Film(next(returns), 9, b""))
    assert result.episode(episodes=4, max_seconds=PATIENCE_SECONDS).return_sum == 0.0


def test_a_film_keeps_to_its_time(result: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    frames, show = itertools.count(), film.show
    monkeypatch.setattr(film, "show", lambda *arguments: (next(frames), show(*arguments)))
    cut = result.episode(episodes=1_000, max_seconds=0.0)
    assert isinstance(cut, film.Film) and cut.return_sum is None and "cut" in cut._repr_html_()
    assert next(frames) == 1, "no step begins after it"


def test_an_environment_that_does_not_render_says_so() -> None:
    pytest.importorskip("imageio_ffmpeg")
    options: dict[str, Any] = {
        "num_actors": 1,
        "envs_per_actor": 2,
        "http": "off",
        "eval_interval_steps": None,
    }
    trainer = Trainer(FixedLength, small("dqn", learning_starts=50), target_eval_episodes=1, **options)
    result = trainer.learn(total_steps=100)
    with pytest.raises(errors.ConfigurationError, match="cannot render as 'rgb_array'"):
        result.episode()
