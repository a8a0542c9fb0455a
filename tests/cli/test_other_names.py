"""Names of Stable-Baselines3, its zoo, CleanRL and RLlib: each has a hint, on the command line and in Python."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch import nn

from asyncrl import DQN, PPO, SAC, Callback, Trainer, TrainResult
from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.hyperparameters import Hyperparameters
from asyncrl.algorithms.other_names import ATTRIBUTES, CLOSEST, other_names
from asyncrl.algorithms.registry import algorithm_name
from asyncrl.cli.main import main
from asyncrl.cli.train import parse
from asyncrl.cli.train_flags import NOT_A_FIELD, answer
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.options import option_help

BASE = "policy learning_rate gamma stats_window_size tensorboard_log policy_kwargs verbose seed device"
ON = "n_steps gae_lambda ent_coef vf_coef max_grad_norm use_sde sde_sample_freq rollout_buffer_class "
ON += "rollout_buffer_kwargs normalize_advantage"
OFF = "buffer_size learning_starts batch_size tau train_freq gradient_steps action_noise replay_buffer_class "
OFF += "replay_buffer_kwargs optimize_memory_usage n_steps"
EPSILON = (
    "target_update_interval exploration_fraction exploration_initial_eps exploration_final_eps max_grad_norm"
)
ENTROPY = "ent_coef target_update_interval target_entropy use_sde sde_sample_freq use_sde_at_warmup"

SB3 = {
    "ppo": f"{BASE} {ON} batch_size n_epochs clip_range clip_range_vf target_kl",
    "a2c": f"{BASE} {ON} rms_prop_eps use_rms_prop",
    "dqn": f"{BASE} {OFF} {EPSILON}",
    "sac": f"{BASE} {OFF} {ENTROPY}",
    "td3": f"{BASE} {OFF} policy_delay target_policy_noise target_noise_clip",
    "ddpg": f"{BASE} {OFF}",
    "qrdqn": f"{BASE} {OFF} {EPSILON} n_quantiles",
    "tqc": f"{BASE} {OFF} {ENTROPY} top_quantiles_to_drop_per_net n_critics n_quantiles",
}
"""Parameters of the constructors of Stable-Baselines3 2.7 and sb3-contrib, and quantiles out of `policy_kwargs`."""

RUN = "exp_name seed torch_deterministic cuda track wandb_project_name wandb_entity capture_video save_model "
RUN += "upload_model hf_entity env_id total_timesteps learning_rate num_envs gamma"
TWIN = "buffer_size tau batch_size learning_starts policy_frequency noise_clip exploration_noise"
CLEANRL = {
    "ppo": f"{RUN} num_steps anneal_lr gae_lambda num_minibatches update_epochs norm_adv clip_coef clip_vloss "
    "ent_coef vf_coef max_grad_norm target_kl",
    "dqn": f"{RUN} buffer_size tau target_network_frequency batch_size start_e end_e exploration_fraction "
    "learning_starts train_frequency",
    "c51": f"{RUN} buffer_size n_atoms v_min v_max target_network_frequency batch_size start_e end_e "
    "exploration_fraction learning_starts train_frequency",
    "sac": f"{RUN} buffer_size tau batch_size learning_starts policy_lr q_lr policy_frequency "
    "target_network_frequency alpha autotune",
    "td3": f"{RUN} {TWIN} policy_noise",
    "ddpg": f"{RUN} {TWIN}",
}
ZOO = (
    "algo env tensorboard_log trained_agent n_timesteps num_threads log_interval eval_freq eval_episodes "
    "n_eval_envs save_freq save_replay_buffer log_folder seed vec_env device n_trials optimize_hyperparameters "
    "n_jobs sampler pruner n_evaluations storage study_name verbose gym_packages env_kwargs eval_env_kwargs "
    "hyperparams uuid track wandb_project_name wandb_entity progress wandb_tags n_envs normalize frame_stack "
    "env_wrapper policy noise_type noise_std callback vec_env_wrapper monitor_kwargs conf_file yaml_file"
)


RLLIB_RUN = (
    "num_env_runners num_envs_per_env_runner num_rollout_workers num_envs_per_worker num_workers num_gpus "
)
RLLIB_RUN += (
    "framework env env_config evaluation_interval evaluation_duration seed storage_path lr gamma grad_clip "
)
RLLIB_RUN += "train_batch_size rollout_fragment_length fcnet_hiddens fcnet_activation"
RLLIB = {
    "ppo": f"{RLLIB_RUN} lambda lambda_ clip_param vf_clip_param vf_loss_coeff entropy_coeff kl_coeff kl_target "
    "use_kl_loss sgd_minibatch_size minibatch_size num_sgd_iter num_epochs",
    "dqn": f"{RLLIB_RUN} target_network_update_freq num_steps_sampled_before_learning_starts training_intensity tau "
    "replay_buffer_config n_step double dueling noisy",
    "sac": f"{RLLIB_RUN} actor_lr critic_lr tau target_entropy n_step training_intensity",
}
"""Settings of RLlib's algorithms, and of its configuration's sections that are about a run."""


def lists() -> list[tuple[str, str]]:
    tables = [SB3, CLEANRL, RLLIB, {"ppo": ZOO, "dqn": ZOO}]
    return [(algo, name) for table in tables for algo, names in table.items() for name in names.split()]


@pytest.mark.parametrize(("algo", "name"), sorted(set(lists())))
def test_every_name_of_theirs_is_known_or_answered(algo: str, name: str) -> None:
    known = {*option_help(ALGORITHMS[algo]), *option_help(TrainerConfig)}
    if name not in known:
        text = answer(f"--{name.replace('_', '-')}", algo)
        assert text is not None
        assert text == answer(f"--{name}", algo) == answer(f"--{algo}.{name}", algo)


def test_every_name_of_ours_in_the_table_exists() -> None:
    ours = {*option_help(TrainerConfig), *NOT_A_FIELD}
    of_algorithms = {name for record in ALGORITHMS.values() for name in option_help(record)}
    for name, other in other_names().items():
        assert set(other.ours) <= (ours if other.of_run else of_algorithms), name
        assert other.ours or other.note, name
        assert name not in ours or other.of_run is False, f"{name} is ours"


@pytest.mark.parametrize(
    ("flag", "algo", "text"),
    [
        ("--lr", "dqn", "asyncrl calls it --dqn.learning-rate"),
        ("--n-timesteps", "ppo", "asyncrl calls it --steps"),
        (
            "--num-envs",
            "dqn",
            "asyncrl calls it --envs-per-actor (environments of each actor; num_actors times",
        ),
        ("--net-arch", "sac", "asyncrl calls it --sac.hidden-sizes (the policy's; critics have"),
        ("--buffer-size", "dqn", "asyncrl calls it --dqn.replay-capacity"),
        ("--n-steps", "ppo", "asyncrl calls it --ppo.segment-length"),
        ("--n-steps", "sac", "asyncrl calls it --sac.n-step"),
        ("--batch-size", "ppo", "asyncrl calls it --ppo.minibatch-size (of on-policy algorithms)"),
        ("--batch-size", "dqn", "did you mean --dqn.batch-size?"),
        ("--policy-lr", "sac", "asyncrl calls it --sac.actor-learning-rate"),
        ("--target-update-interval", "sac", "asyncrl calls it --sac.tau (the target follows softly"),
        ("--clip-coef", "dqn", "asyncrl calls it clip_range, which dqn does not have"),
        ("--use-sde", "ppo", "there is no state-dependent exploration"),
        ("--env-id", "dqn", "asyncrl calls it ENV (the first argument"),
        (
            "--buffer-size",
            None,
            "asyncrl calls it replay_capacity, which is an option of the algorithm: give --algo",
        ),
        ("--ppo.learning-rate", "dqn", "the run is of dqn, not of ppo; write --dqn.learning-rate"),
        ("--PPO.clip-range", "dqn", "the run is of dqn, not of ppo"),
        ("--no-dqn.double", None, "add --algo dqn"),
        ("--xyz.double", "dqn", None),
        ("--xyzzy", "dqn", None),
    ],
)
def test_answers(flag: str, algo: str | None, text: str | None) -> None:
    found = answer(flag, algo)
    assert found == text if text is None or found is None else found.startswith(text)


def test_options_of_another_algorithm_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["CartPole-v1", "--algo", "dqn", "--ppo.learning-rate", "3"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "asyncrl train: error: unknown option --ppo.learning-rate; the run is of dqn, not of ppo; "
    )


def test_a_short_flag_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["CartPole-v1", "--algo", "dqn", "-n", "1000"])
    assert "error: unknown option -n; options have long names, of two dashes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "name"),
    [("PPO", "ppo"), ("QR-DQN", "qrdqn"), ("qr_dqn", "qrdqn"), ("dqn", "dqn"), ("Dqm", "Dqm"), ("", "")],
)
def test_names_of_algorithms_in_any_case(text: str, name: str) -> None:
    assert algorithm_name(text) == name


def test_the_command_and_the_trainer_take_them() -> None:
    config, algorithm = parse(["CartPole-v1", "--algo", "PPO", "--ppo.epochs", "3"])
    assert (config.algo, algorithm) == ("ppo", PPO.preset("CartPole-v1", epochs=3))
    assert Trainer("CartPole-v1", "PPO").config.algo == "ppo"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DQN(lr=1), "DQN has no option 'lr'; asyncrl calls it learning_rate"),
        (lambda: PPO(batch_size=1), "PPO has no option 'batch_size'; asyncrl calls it minibatch_size"),
        (
            lambda: DQN(n_envs=1),
            "DQN has no option 'n_envs'; asyncrl calls it envs_per_actor, an option of Trainer",
        ),
        (
            lambda: SAC(clip_coef=1),
            "SAC has no option 'clip_coef'; asyncrl calls it clip_range, which SAC does not",
        ),
        (lambda: DQN(use_sde=True), "DQN has no option 'use_sde': there is no state-dependent exploration"),
        (lambda: DQN(gama=1), "DQN has no option 'gama'; did you mean gamma?"),
        (lambda: DQN(zzz=1), "DQN has no option 'zzz'"),
        (
            lambda: Trainer("x", DQN(), n_timesteps=5),
            "Trainer has no option 'n_timesteps'; asyncrl calls it total_st",
        ),
        (
            lambda: Trainer("x", DQN(), lr=5),
            "Trainer has no option 'lr'; asyncrl calls it learning_rate, an option of",
        ),
    ],
)
def test_keyword_arguments(make: object, text: str) -> None:
    with pytest.raises(TypeError) as error:
        make()  # type: ignore[operator]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("her", "asyncrl has no HER; closest is sac (it relabels goals"),
        ("TRPO", "asyncrl has no TRPO; closest is ppo (target_kl"),
        ("a3c", "asyncrl has no A3C; closest is a2c (the actors"),
        ("recurrent_ppo", "asyncrl has no RECURRENT_PPO; closest is ppo (with recurrent lstm)"),
    ],
)
def test_algorithms_of_other_libraries(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["CartPole-v1", "--algo", name])
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"asyncrl train: error: {text}")
    with pytest.raises(ConfigurationError) as error:
        Trainer("CartPole-v1", name)
    assert error.value.what.startswith(text) and error.value.fix.startswith("write ")


def test_closest_algorithms_exist_and_are_not_ours() -> None:
    assert {ours for ours, _ in CLOSEST.values()} <= set(ALGORITHMS) and not CLOSEST.keys() & set(ALGORITHMS)


def test_the_environment_is_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--env", "CartPole-v1", "--algo", "ppo"])
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "unknown option --env; the environment is the first argument: asyncrl train CartPole-v1" in said


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: PPO(seed=1),
            "PPO has no option 'seed'; it is an option of Trainer: write Trainer(env, PPO(), seed=...)",
        ),
        (
            lambda: SAC(env="Pendulum-v1"),
            "SAC has no option 'env'; it is an option of Trainer: write Trainer(env, SAC())",
        ),
        (
            lambda: PPO(verbose=1),
            "PPO has no option 'verbose': the run is shown without being asked; learn(progress=F",
        ),
        (lambda: PPO("MlpPolicy", "CartPole-v1"), "PPO takes options by name only, got 'MlpPolicy'; "),
        (lambda: SAC(object()), "SAC takes options by name only, got '<object"),
        (
            lambda: trainer().learn(total_timesteps=10),
            "learn() has no argument 'total_timesteps'; asyncrl calls it total_steps",
        ),
        (
            lambda: trainer().learn(callback=print),
            "learn() has no argument 'callback'; write callbacks=[...]",
        ),
        (lambda: trainer().learn(seed=1), "learn() has no argument 'seed'; it is an option of Trainer"),
        (lambda: trainer().start(n_timesteps=10), "start() has no argument 'n_timesteps'; asyncrl calls it"),
        (lambda: trainer().learn(zzz=10), "learn() has no argument 'zzz'"),
        (
            lambda: Trainer(env="CartPole-v1", n_envs=4),
            "Trainer has no option 'n_envs'; asyncrl calls it envs_per_actor",
        ),
        (
            lambda: Trainer("ppo", "CartPole-v1"),
            "the environment comes first, then the algorithm: write Trainer('CartPole-v1', 'ppo')",
        ),
        (
            lambda: Trainer(PPO(), "Acrobot-v1"),
            "the environment comes first, then the algorithm: write Trainer('Acrobot-v1', PPO(...))",
        ),
        (
            lambda: Trainer(PPO),
            "the environment comes first, then the algorithm: write Trainer('CartPole-v1', PPO(",
        ),
        (
            lambda: trainer().learn(10, callbacks=Callback()),
            "callbacks must be a list, got Callback; write callbacks=[",
        ),
        (
            lambda: PPO(network=nn.Linear(4, 2)),
            "network must be a function network(inputs, outputs) that returns",
        ),
        (
            lambda: DQN(network=lambda: nn.Linear(4, 2)),
            "network must be a function network(inputs, outputs) that returns a new torch.nn.Module, got one whose "
            "call fails: too many positional arguments",
        ),
    ],
)
def test_what_users_of_other_libraries_write_first(make: object, text: str) -> None:
    with pytest.raises(TypeError) as error:
        make()  # type: ignore[operator]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "learn",
            "'PPO' object has no attribute 'learn'; it holds options only, write Trainer(env, PPO()).learn(",
        ),
        (
            "predict",
            "'PPO' object has no attribute 'predict'; it holds options only, write result = Trainer(",
        ),
        ("zzz", "'PPO' object has no attribute 'zzz'"),
    ],
)
def test_methods_of_stable_baselines3_are_answered(name: str, text: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(PPO(), name)
    assert str(error.value).startswith(text)
    assert copy.copy(PPO(gamma=0.5)) == pickle.loads(pickle.dumps(PPO(gamma=0.5))) == PPO(gamma=0.5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("predict", "'Trainer' object has no attribute 'predict'; write result.policy.predict(obs)"),
        ("save", "'Trainer' object has no attribute 'save'; write result.policy.save(path)"),
        ("zzz", "'Trainer' object has no attribute 'zzz'"),
    ],
)
def test_methods_of_a_model_are_answered(name: str, text: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(trainer(), name)
    assert str(error.value).startswith(text)
    result: Any = TrainResult(None, None, "stopped", {}, None)  # type: ignore[arg-type]
    with pytest.raises(
        AttributeError, match=r"'TrainResult' .* 'env_steps'; write result\.summary\[\"env_steps\"\]"
    ):
        result.env_steps  # noqa: B018
    assert copy.copy(result) == result and not hasattr(result, "zzz")


def test_what_is_answered_is_there() -> None:
    """No answer stands beside an attribute that exists, which would never be seen."""
    classes = {
        "Hyperparameters": Hyperparameters,
        "Callback": Callback,
        "Trainer": Trainer,
        "TrainResult": TrainResult,
    }
    assert classes.keys() == ATTRIBUTES.keys()
    assert not [name for own, names in ATTRIBUTES.items() for name in names if hasattr(classes[own], name)]


@pytest.mark.parametrize(
    ("get", "text"),
    [
        (
            lambda: PPO.load,
            "type object 'PPO' has no attribute 'load'; it holds options only, write asyncrl.load(path), which acts",
        ),
        (
            lambda: DQN().load,
            "'DQN' object has no attribute 'load'; it holds options only, write asyncrl.load(",
        ),
        (
            lambda: SAC.learn,
            "type object 'SAC' has no attribute 'learn'; it holds options only, write Trainer(env, SAC())",
        ),
        (
            lambda: PPO().predict,
            "'PPO' object has no attribute 'predict'; it holds options only, write result = ",
        ),
        (lambda: PPO.other, "type object 'PPO' has no attribute 'other'"),
        (
            lambda: Trainer.load,
            "type object 'Trainer' has no attribute 'load'; write asyncrl.load(path), or ",
        ),
        (
            lambda: trainer().logger,
            "'Trainer' object has no attribute 'logger'; write trainer.log(name, value)",
        ),
        (
            lambda: Mine().logger.record,
            "'Mine' object has no attribute 'logger'; write trainer.log(name, value)",
        ),
        (
            lambda: Mine().model,
            "'Mine' object has no attribute 'model'; write trainer, the first argument of",
        ),
    ],
)
def test_what_models_and_callbacks_of_another_library_have(get: Any, text: str) -> None:
    with pytest.raises(AttributeError) as error:
        get()
    assert str(error.value).startswith(text)


class Mine(Callback):
    """A callback."""


@pytest.mark.parametrize("value", ["auto", "auto_0.1"])
def test_the_automatic_entropy_coefficient(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"ent_coef has no value {value!r}; none tunes it, which is the default"
    with pytest.raises(ValueError, match=text):
        SAC(ent_coef=value)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        main(["train", "Pendulum-v1", "--algo", "sac", "--sac.ent-coef", value])
    assert text in capsys.readouterr().err.replace("\n ", "")


def trainer() -> Any:
    return Trainer("CartPole-v1", DQN())
