"""`asyncrl export`: write the policy of a run to a file that can be used elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asyncrl.cli.flags import Parser, PolicyParser


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `asyncrl export`."""

    run: str
    """Directory of a run, a checkpoint file, or a policy file."""

    onnx: str | None = None
    """File for the greedy policy as an ONNX model, which runs without asyncrl."""

    policy: str | None = None
    """File for the policy in the format of `asyncrl.load`, which acts without torch."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    def __post_init__(self) -> None:
        if self.onnx is None and self.policy is None:
            raise ValueError(
                "onnx or policy must be given, for example: asyncrl export RUN --onnx policy.onnx"
            )


def make_parser() -> Parser:
    """Flags of `asyncrl export`."""
    return PolicyParser(
        "export RUN --onnx FILE [options]", "Write the policy of a run to a file of its own.", ExportOptions
    )


def run(options: ExportOptions) -> None:
    """Write the files."""
    from asyncrl.policies.load import checkpoint_file, load
    from asyncrl.policies.onnx_export import require_onnx
    from asyncrl.storage.disk_space import error_of_file

    if options.onnx is not None:
        require_onnx()
    path = checkpoint_file(Path(options.run).expanduser(), options.checkpoint)
    policy = load(options.run, checkpoint=options.checkpoint, trusted=True)
    print(f"policy       {policy.describe(path)}", flush=True)
    writers = {"onnx": (options.onnx, policy.export_onnx), "file": (options.policy, policy.save)}
    for what, (file, write) in writers.items():
        if file is not None:
            with error_of_file("the policy", Path(file).expanduser()):
                written = write(file)
            print(f"{what:12} {written}", flush=True)
