"""Films of evaluations, in a run."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import levels
import numpy as np
import pytest
from small_records import small
from waiting import PATIENCE_SECONDS

from asyncrl import PPO, Trainer
from asyncrl.errors import ConfigurationError
from asyncrl.run.evaluate import EvaluationFilms


def trainer_of(env: Any, run_dir: Path | None = None, **given: Any) -> Trainer:
    run: dict[str, Any] = {
        "num_actors": 1,
        "envs_per_actor": 2,
        "eval_interval_steps": 150,
        "eval_episodes": 1,
    }
    record = small("dqn", discipline="lockstep", learning_starts=100)
    return Trainer(
        env, record, http="off", seed=2, run_dir=run_dir, target_eval_episodes=1, **{**run, **given}
    )


def test_the_first_episode_of_the_last_evaluation_is_filmed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = trainer_of(levels.Pictured, run, eval_film=True)
    result = trainer.learn(400)
    shown = trainer.snapshot()
    assert shown is not None and shown.film is not None
    assert shown.film.env_steps == result.evaluation.env_steps  # type: ignore[union-attr]
    assert (shown.film.length, shown.film.cut) == (23, False)
    assert shown.film.return_sum == pytest.approx(result.evaluation.return_mean)  # type: ignore[union-attr]
    assert (run / "evaluation.mp4").read_bytes()[4:8] == b"ftyp"
    assert [file.name for file in run.glob(".evaluation*")] == []
    plain = trainer_of(levels.Pictured).learn(400)
    assert np.array_equal(result.policy.weights, plain.policy.weights), "films change nothing"


def test_a_film_draws_actions_where_evaluations_do() -> None:
    run: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "target_eval_episodes": 1, "http": "off"}
    record = PPO(segment_length=8, learning_rate=1e-9)
    trainer = Trainer(levels.PicturedChoice, record, eval_film=True, eval_deterministic=False, seed=2, **run)
    result = trainer.learn(16, progress=False)
    shown = trainer.snapshot()
    assert shown is not None and shown.film is not None and result.evaluation is not None
    assert shown.film.return_sum == result.evaluation.return_mean, "of one episode the draws are the same"
    greedy = Trainer(levels.PicturedChoice, record, seed=2, **run).learn(16, progress=False).evaluation
    assert greedy is not None and greedy.return_mean != shown.film.return_sum


def test_an_interrupted_run_does_not_wait_for_its_film() -> None:
    async def finish(interrupt: bool) -> bool:
        films = EvaluationFilms.__new__(EvaluationFilms)
        films._task, interrupted = asyncio.create_task(asyncio.Event().wait()), asyncio.Event()  # type: ignore[arg-type]
        finishing = asyncio.create_task(films.finish(interrupted))
        await asyncio.sleep(0)
        if interrupt:
            interrupted.set()
        done, _ = await asyncio.wait({finishing}, timeout=PATIENCE_SECONDS if interrupt else 0.0)
        return bool(done)

    assert asyncio.run(finish(True)) and not asyncio.run(finish(False))


def test_without_a_directory_the_film_ends_with_the_run() -> None:
    trainer = trainer_of(levels.Pictured, eval_film=True)
    trainer.learn(200)
    films = trainer.snapshot()
    assert films is not None and films.film is not None
    assert trainer._run is not None and not hasattr(trainer._run, "films")


def test_an_environment_without_pictures_is_trained_with_one_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_of(levels.Level, tmp_path / "run", eval_film=True)
        trainer.learn(600)
    texts = [str(warning.message) for warning in caught if "ASYNC041" in str(warning.message)]
    assert len(texts) == 1 and "cannot render as 'rgb_array'" in texts[0]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "finished"


def test_a_missing_package_is_told_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("asyncrl.envs.video.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs the package imageio-ffmpeg"):
        trainer_of(levels.Pictured, eval_film=True).learn(200)
    assert not list(tmp_path.glob("asyncrl-film-*"))
