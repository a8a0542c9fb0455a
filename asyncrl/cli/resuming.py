"""Training of `asyncrl resume`, after its arguments are parsed. Imports torch."""

from __future__ import annotations

from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.plain_warnings import show_warnings_plainly
from asyncrl.cli.resume_options import ResumeOptions
from asyncrl.cli.training import learn
from asyncrl.learning.clock import PROGRAM_START
from asyncrl.trainer.trainer import Trainer


def resume(options: ResumeOptions, server: ForkServer, interrupts: Interrupts) -> int:
    """Print where the run continues, then train like `train`; returns the exit code."""
    show_warnings_plainly()
    trainer = Trainer.resume(
        options.run,
        options.steps,
        checkpoint=options.checkpoint,
        restore_episodes=options.restore_episodes,
        server=server,
        started=PROGRAM_START,
        **options.changes,
    )
    for line in trainer.resumed_from:
        print(line, flush=True)
    return learn(trainer, interrupts)
