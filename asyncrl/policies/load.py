"""`asyncrl.load`: load a policy from a policy file, a checkpoint or a run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import own_record
from asyncrl.acting.modules import NetworkFactory, require_torch
from asyncrl.algorithms import ALGORITHMS
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, CheckpointError, ConfigurationError, describe_error, error_text
from asyncrl.interfaces import EnvSpec
from asyncrl.policies import hub
from asyncrl.policies.policy_file import ANOTHER, read_policy_file
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Algorithm
from asyncrl.storage.checkpoint import CHECKPOINT, CheckpointFolder, read_policy
from asyncrl.storage.checkpoint_meta import CheckpointMeta
from asyncrl.storage.config_file import import_own_algorithm, make_record
from asyncrl.storage.run_files import NETWORK, environment_of_run, network_of_run, unpickled_network
from asyncrl.storage.tensor_file import begins_as, refused


def load(
    path: str | Path,
    *,
    checkpoint: str | int | None = None,
    network: NetworkFactory | None = None,
    trusted: bool = False,
) -> PortablePolicy:
    """Load a policy that acts with NumPy alone. No code from the file is run unless `trusted`.

    Args:
        path: a file that `policy.save` wrote, a checkpoint, a run directory, or a repository of the Hugging Face Hub,
            `"hf://user/name"` or `"hf://user/name@revision"`.
        checkpoint: checkpoint of a run directory: `"best"`, `"latest"` or a number of steps. None is the best, or the
            latest if nothing was evaluated.
        network: the algorithm's option `network`, for a policy with a user-defined network. Such a policy acts with
            torch.
        trusted: unpickle the network in the file, which can run any code of the file's author. Nothing that comes from
            the hub is unpickled.

    Raises:
        CheckpointError: the file is missing or damaged, or does not fit this version (ASYNC019); or it has a
            user-defined network and neither `network` nor `trusted` is given.
        ConfigurationError: it has a user-defined network, and torch is not installed; or the hub has no such policy, or
            its client is not installed (ASYNC017).
        ResourceError: the hub cannot be reached.
    """
    if hub.is_address(path):
        return _from_hub(str(path), checkpoint, network, trusted)
    path = Path(path).expanduser()
    if path.is_dir() or begins_as(path, CHECKPOINT):
        return _from_checkpoint(checkpoint_file(path, checkpoint), network, trusted)
    return _from_file(path, network, trusted)


def load_named(name: str, checkpoint: str | None = None) -> tuple[PortablePolicy, str]:
    """Load the policy that a command names, and return it with the name of its file; see `load`.

    Pickles of the user's own files are trusted, as whoever names a script runs it; those of the hub are not. So is the
    module of a user's algorithm, which a run's `config.toml` names.
    """
    if hub.is_address(name):
        return load(name, checkpoint=checkpoint), name
    file = checkpoint_file(Path(name).expanduser(), checkpoint)
    import_own_algorithm(file.parent.parent / "config.toml")
    return load(name, checkpoint=checkpoint, trusted=True), str(file)


def _from_hub(
    address: str, checkpoint: str | int | None, network: NetworkFactory | None, trusted: bool
) -> PortablePolicy:
    """Load from a repository as data only: an environment that is a pickle stays a name."""
    for name, value in (("checkpoint", checkpoint), ("trusted", trusted or None)):
        if value is not None:
            raise ConfigurationError(
                f"{name} is not for a policy of the hub, which is one file of data, got {value!r}",
                facts={"policy": address},
                fix=f"leave {name} out; another revision is {hub.SCHEME}user/name@revision",
            )
    return _from_file(hub.download(address), network, trusted=False, pickles=False)


def _from_file(
    path: Path, network: NetworkFactory | None, trusted: bool, pickles: bool = True
) -> PortablePolicy:
    """Load a policy file; without `pickles` the environment of a gymnasium spec is its id, one of a factory absent."""

    def check(meta: CheckpointMeta, weights: int, own: bool) -> None:
        if own and network is None:
            _require_trust(path, trusted)
        else:
            _algorithm(path, meta, weights, network if own else None)

    def source() -> EnvSource:
        kind, payload = file.environment_kind, file.environment
        if kind == "id" or (kind == "spec" and not pickles):
            return EnvSource.from_user(file.meta.env)
        if payload is None or (kind == "factory" and not pickles):
            return EnvSource(file.meta.env, "absent", b"")
        return EnvSource(file.meta.env, kind, payload)

    file = read_policy_file(path, check)
    pickled, own = file.network, None
    if pickled is not None:
        own = network or _unpickled(path, lambda: unpickled_network(pickled))
    return _policy(path, file.meta, file.weights, source, own, file.critics)


def checkpoint_file(path: Path, checkpoint: str | int | None = None) -> Path:
    """Path of a checkpoint of a run directory (see `load`); a path that is a file is returned as it is.

    Raises:
        CheckpointError: there is no such checkpoint, or `path` is no directory and `checkpoint` is given.
    """
    if not path.is_dir():
        if checkpoint is not None:
            what = f"it is no run's directory, so that it has no checkpoint {checkpoint!r} to choose"
            raise refused(path, what, "checkpoint", "leave checkpoint out, or name the run's directory")
        return path
    folder = path / "checkpoints"
    if checkpoint is None:
        checkpoint = "best" if (folder / "best").exists() else "latest"
    return CheckpointFolder(folder).file(str(checkpoint))


def _from_checkpoint(path: Path, network: NetworkFactory | None, trusted: bool) -> PortablePolicy:
    saved = read_policy(path)
    meta = replace(saved.meta, env_steps=saved.meta.weights_env_steps or saved.meta.env_steps)
    run = path.parent.parent
    own = None
    if (run / NETWORK).exists():
        if network is None:
            _require_trust(path, trusted)
        own = network or _unpickled(path, lambda: network_of_run(run))
    return _policy(path, meta, saved.weights, lambda: environment_of_run(run, meta.env), own, saved.critics)


def _require_trust(path: Path, trusted: bool) -> None:
    if not trusted:
        what = "the policy has a network of its own, which is kept as a pickle, and a pickle can run any code"
        fix = "give the network: load(path, network=make_network); or load(path, trusted=True) if you trust the file"
        raise refused(path, what, "network", fix)


def _unpickled(path: Path, unpickle: Callable[[], NetworkFactory | None]) -> NetworkFactory | None:
    require_torch()
    try:
        return unpickle()
    except AsyncRLError:
        raise
    except Exception as error:
        what = f"the policy's network cannot be unpickled: {describe_error(error)}"
        raise refused(path, what, "network", "put the modules it was defined with on sys.path") from error


def _policy(
    path: Path,
    meta: CheckpointMeta,
    weights: NDArray[np.float32],
    source: Callable[[], EnvSource],
    network: NetworkFactory | None,
    critics: NDArray[np.float32] | None,
) -> PortablePolicy:
    """Make the policy. Raises `CheckpointError` if options, environment and weights do not fit each other."""
    algorithm = _algorithm(path, meta, weights.shape[0], network)
    with _fitting(path):
        return PortablePolicy(algorithm, weights, meta, source(), critics)


def _algorithm(path: Path, meta: CheckpointMeta, weights: int, network: NetworkFactory | None) -> Algorithm:
    """Make the algorithm's record. Raises `CheckpointError` if its policy has a different number of weights."""
    if network is not None:
        require_torch()
    with _fitting(path):
        algorithm = algorithm_of(path, meta.algo, meta.options, network)
        count = _weight_count(algorithm, meta)
    if count != weights:
        raise _does_not_fit(path, f"its options make a policy of {count:,} weights, it holds {weights:,}")
    return algorithm


@contextlib.contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Convert errors of options and spaces that do not fit into `CheckpointError`, but for those of another file."""
    try:
        yield
    except CheckpointError:
        raise
    except AsyncRLError as error:
        if error.facts.get("file", path) != path:  # `config.toml`, which has the environment
            raise
        raise _does_not_fit(path, error.what) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise _does_not_fit(path, error_text(error)) from None


def _weight_count(algorithm: Any, meta: CheckpointMeta) -> int:
    """Number of weights of the policy. A layout is used if the algorithm has one, which allocates no weights."""
    each = [(own_record(algorithm, own), own.spec) for own in meta.spec.policies] or [(algorithm, meta.spec)]
    return sum(_own_weight_count(record, spec) for record, spec in each)


def _own_weight_count(algorithm: Any, spec: EnvSpec) -> int:
    layout = getattr(algorithm, "acting_layout", None) or getattr(algorithm, "layout", None)
    made = algorithm.make_policy if layout is None else layout  # a user-defined algorithm may have no layout
    return int(made(spec).weight_count)


def algorithm_of(
    path: Path, name: str, options: Mapping[str, Any], network: NetworkFactory | None = None
) -> Algorithm:
    """Make an algorithm's record from the name and options in a header.

    Raises:
        CheckpointError: this version has no such algorithm.
        ConfigurationError: the algorithm has no such options or values.
    """
    record = ALGORITHMS.get(name)
    if record is None:
        names = ", ".join(ALGORITHMS)
        what = f"it was written by algorithm {name!r}, which this version does not have (it has {names})"
        fix = "import the module that registers it, or use the asyncrl that wrote it"
        raise refused(path, what, "algorithm", fix)
    algorithm = make_record(record, dict(options), file=path, path=name)
    return algorithm if network is None else record(**{**dict(options), "network": network})


def _does_not_fit(path: Path, what: str) -> CheckpointError:
    return refused(path, f"the policy does not fit: {what}", "options", ANOTHER)
