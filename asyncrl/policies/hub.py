"""Policies on the Hugging Face Hub: a repository with one policy file and a model card. The only door to its client.

    policy.safetensors   `policy_file.py`, without pickles
    README.md            the model card

Who may write a repository is not who trained the policy, so a policy of the hub is data: nothing in it is unpickled,
whatever the caller trusts. The token is the client's own (`hf auth login`, or HF_TOKEN), and so is the server's address
(HF_ENDPOINT).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from asyncrl.acting.recurrent import memory_of
from asyncrl.envs.registered import extra_of
from asyncrl.envs.source import EnvKind
from asyncrl.errors import AsyncRLError, ConfigurationError, ResourceError, error_text
from asyncrl.policies.policy_file import PolicyFile, write_policy
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.version import __version__

SCHEME = "hf://"
FILE = "policy.safetensors"
_ADDRESS = re.compile(r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_REPOSITORY = re.compile(r"\w[\w.-]{0,95}(?<=\w)/\w[\w.-]{0,95}(?<=\w)(?<!\.git)", re.ASCII)
"""Names that the hub accepts, but for `--` and `..`, which it refuses too."""
_REFUSED, _MISSING = (401, 403), 404


def is_address(path: object) -> bool:
    """Whether this names a repository of the hub: `hf://user/name`."""
    return isinstance(path, str) and path.startswith(SCHEME)


def download(address: str) -> Path:
    """Download the policy file of a repository into the client's cache and return its path.

    Args:
        address: `hf://user/name`, or `hf://user/name@revision`: a branch, a tag or a commit.

    Raises:
        ConfigurationError: the address is wrong, there is no such repository, or huggingface_hub is not installed.
        ResourceError: the hub cannot be reached.
    """
    repo, revision = _parts(address)
    with _errors_of_hub(repo, "read it"):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, FILE, revision=revision))


def push(
    policy: PortablePolicy, repo: str, card: str, *, private: bool = False, critics: bool = False
) -> str:
    """Write the policy and its card to a repository in one commit; make the repository if it does not exist.

    Args:
        policy: the policy.
        repo: `user/name`.
        card: text of README.md, see `model_card`.
        private: whether a new repository is private.
        critics: see `PortablePolicy.save`.

    Returns:
        Address of the repository's page.

    Raises:
        ConfigurationError: the name is wrong, the client is not installed or has no token that may write there, or the
            policy has a network of the user's own, which is a pickle.
        ResourceError: the hub cannot be reached.
    """
    repo, revision = _parts(repo)
    if revision is not None:
        raise ConfigurationError(
            f"a push has no revision, got {revision}", fix=f"name the repository: {repo}"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        write_policy(file, _without_pickles(policy.file(critics=critics)))
        with _errors_of_hub(repo, "write there"):
            from huggingface_hub import CommitOperationAdd, HfApi

            api = HfApi(library_name="asyncrl", library_version=__version__)
            url = api.create_repo(repo, private=private, exist_ok=True)
            files: dict[str, Any] = {FILE: file, "README.md": card.encode()}
            changes = [CommitOperationAdd(name, content) for name, content in files.items()]
            api.create_commit(repo, changes, commit_message=policy.describe())
    return str(url)


def _without_pickles(file: PolicyFile) -> PolicyFile:
    """The file without a pickled environment, whose name stays: that of gymnasium's spec is an id."""
    if file.environment_kind in ("id", "changed", "absent"):
        return file
    kind: EnvKind = "id" if file.environment_kind == "spec" else "absent"
    return dataclasses.replace(file, environment_kind=kind, environment=None)


def require_pushable(policy: PortablePolicy, repo: str) -> None:
    """Raise ConfigurationError if a push would be refused before anything is sent; see `push`."""
    _parts(repo)
    _require_client()
    if getattr(policy.algorithm, "own_network", None) is not None:
        raise ConfigurationError(
            "a policy with a network of your own cannot be pushed: the file would hold the network as a pickle, and "
            "nothing of the hub is unpickled",
            facts={"policy": policy.describe()},
            fix="push a network of asyncrl, or share the policy as an ONNX model: asyncrl export RUN --onnx FILE",
        )


def model_card(policy: PortablePolicy, repo: str, evaluation: Mapping[str, Any], license_name: str) -> str:
    """Markdown of the card: environment, algorithm, evaluation, how to watch and use the policy, hyper-parameters.

    Args:
        policy: the policy.
        repo: `user/name`.
        evaluation: `return_mean`, `return_std`, `episodes` and `seed` of an evaluation of these weights.
        license_name: license for the hub's list, such as `apache-2.0`; `unknown` says that there is none yet.
    """
    repo, _ = _parts(repo)
    meta = policy.meta
    reached = f"{evaluation['return_mean']:.2f} +/- {evaluation['return_std']:.2f}"
    played = f"{reached} over {evaluation['episodes']} greedy episodes, seed {evaluation['seed']}"
    rows = {
        "environment": f"`{meta.env}`",
        "algorithm": f"{meta.algo}",
        "return": played,
        "environment steps": f"{meta.env_steps:,}",
        "training seed": f"{meta.seed}",
        "written by": f"asyncrl {meta.asyncrl_version}",
    }
    by_id = policy.source.kind in ("id", "changed", "spec")
    unbuilt = "The environment is a function of the author's, which is not in the file: make it yourself.\n"
    watch = f"enjoy {SCHEME}{repo}" if by_id else f"eval {SCHEME}{repo} --env my_module:MyEnv"
    chosen = license_name != "unknown"
    extras = ",".join(filter(None, ("hub", extra_of(meta.env))))
    return "\n".join(
        (
            *_front_matter(policy, reached, license_name),
            f"# {meta.algo} on {meta.env}\n",
            "| | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in rows.items()),
            "\n## Watch it\n",
            "" if by_id else unbuilt,
            f'```sh\npip install "asyncrl[{extras}]"\nasyncrl {watch}\n```\n',
            "## Use it\n",
            f'```python\nimport asyncrl\n\npolicy = asyncrl.load("{SCHEME}{repo}")',
            f"{_call_of_predict(policy)}\n```\n",
            "## Hyper-parameters\n",
            f"```json\n{json.dumps(dict(meta.options), indent=2)}\n```\n",
            f"## License\n\n{license_name if chosen else 'To be chosen by the author: edit this card.'}\n",
        )
    )


def _call_of_predict(policy: PortablePolicy) -> str:
    """Lines that make an action; a policy with a state, a memory or a stack of frames, gives it back."""
    of_agents = "  # {agent: observation} of the agents that go on"
    given, got, comment = (
        ("observations", "actions", of_agents) if policy.spec.agents else ("obs", "action", "")
    )
    parts = getattr(policy.policy, "parts", (policy.policy,))
    if all(memory_of(part) is None and part.frame_stack == 1 for part in parts):
        return f"{got}, _ = policy.predict({given}){comment}"
    if all(memory_of(part) is None for part in parts):
        stacks = (
            f"# Of stacks of observations, as policy.make_env() gives: {got}, _ = policy.predict({given})"
        )
        return f"{stacks}\n{_call_with_state(given, got, comment)}"
    return _call_with_state(given, got, comment)


def _call_with_state(given: str, got: str, comment: str) -> str:
    call = f"{got}, state = policy.predict({given}, state=state, episode_start=start){comment}"
    return f"state, start = None, True  # where an episode begins\n{call}\nstart = False"


def _front_matter(policy: PortablePolicy, reached: str, license_name: str) -> list[str]:
    """Lines of the card's metadata, JSON values being YAML: the hub's list shows the return from it."""
    meta = policy.meta
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": meta.env, "name": meta.env},
        "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": reached, "verified": False}],
    }
    entries = {
        "library_name": "asyncrl",
        "license": license_name,
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "asyncrl", meta.algo, meta.env],
        "model-index": [{"name": meta.algo, "results": [result]}],
    }
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in entries.items()), "---\n"]


def _parts(address: str) -> tuple[str, str | None]:
    """Repository and revision of an address. Raises ConfigurationError if it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigurationError(
            f"a repository of the hub must be named user/name, got {address!r}",
            fix=f"write {SCHEME}user/name, or {SCHEME}user/name@revision to load an older one",
        )
    repo = found["repo"]
    if _REPOSITORY.fullmatch(repo) is None or "--" in repo or ".." in repo:
        raise ConfigurationError(
            f"the hub has no repository of the name {repo!r}: both parts begin and end with a letter, a digit or _, "
            "have 96 characters at most, no two - or . in a row, and no .git at the end",
            fix="check the name",
        )
    return repo, found["revision"]


def _require_client() -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigurationError(
            "policies of the Hugging Face Hub need the package huggingface_hub, which is not installed",
            fix='pip install "asyncrl[hub]"',
        )


@contextlib.contextmanager
def _errors_of_hub(repo: str, wanted: Literal["read it", "write there"]) -> Iterator[None]:
    """Turn the client's errors into ones that name the repository and the fix; its classes differ by version.

    The hub answers a caller without a token with 401 for a repository that does not exist, as for a private one.
    """
    _require_client()
    try:
        yield
    except AsyncRLError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        facts = {"repository": repo, "the hub's client says": error_text(error).strip().splitlines()[0]}
        unknown = wanted == "read it" and type(error).__name__ == "RepositoryNotFoundError"
        missing = status == _MISSING or unknown
        if status in _REFUSED and not missing:
            raise ConfigurationError(
                f"the hub refuses access to {repo}",
                facts=facts,
                fix=f"log in with a token that may {wanted}: hf auth login, or set HF_TOKEN",
            ) from error
        if missing:
            raise ConfigurationError(
                f"the hub has no policy of asyncrl at {repo}, or it is private",
                facts=facts,
                fix="check the name and the revision; for a private one log in: hf auth login, or set HF_TOKEN",
            ) from error
        from huggingface_hub import constants

        network = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "check the network, try again"
        cached = "; once loaded, a policy stays in the client's cache and needs no network"
        raise ResourceError(
            f"the hub cannot be reached, or failed, for {repo}",
            facts=facts,
            fix=network + (cached if wanted == "read it" else ""),
        ) from error
