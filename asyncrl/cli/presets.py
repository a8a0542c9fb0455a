"""`asyncrl presets`: what is tuned for which environment, and the return that it is held to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer
