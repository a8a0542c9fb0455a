"""`asyncrl export`: write the policy of a run to a file that can be used elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asyncrl.cli.flags import Parser, PolicyParser


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `asyncrl export`."""

    run: str
    """Directory of a run, a checkpoint file, a policy file, or hf://user/name."""

    onnx: str | None = None
    """File for the greedy policy as an ONNX model, which runs without asyncrl."""

    policy: str | None = None
    """File for the policy in the format of `asyncrl.load`, which acts without torch."""

    critics: bool = False
    """Also keep the critics in the policy's file, from which its values are computed."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    def __post_init__(self) -> None:
        if self.onnx is None and self.policy is None:
            raise ValueError(
                "onnx or policy must be given, for example: asyncrl export RUN --onnx policy.onnx"
            )
        if self.critics and self.policy is None:
            raise ValueError("critics must come with policy: an ONNX model has the greedy action alone")


def make_parser() -> Parser:
    """Flags of `asyncrl export`."""
    return PolicyParser(
        "export RUN --onnx FILE [options]", "Write the policy of a run to a file of its own.", ExportOptions
    )


def run(options: ExportOptions) -> None:
    """Write the files."""
    from asyncrl.policies.load import load_named
    from asyncrl.policies.onnx_export import require_onnx
    from asyncrl.storage.disk_space import error_of_file

    if options.onnx is not None:
        require_onnx()
    policy, file = load_named(options.run, options.checkpoint)
    print(f"policy       {policy.describe(file)}", flush=True)
    save = partial(policy.save, critics=options.critics)
    writers: dict[str, tuple[str | None, Callable[[str], Path]]] = {
        "onnx": (options.onnx, policy.export_onnx),
        "file": (options.policy, save),
    }
    for what, (target, write) in writers.items():
        if target is not None:
            with error_of_file("the policy", Path(target).expanduser()):
                written = write(target)
            print(f"{what:12} {written}", flush=True)
