"""Context manager protocols of a run: `with` and `async with` close it at the end of the block."""

from __future__ import annotations

import asyncio
from typing import Self


class ClosedByWith:
    """Base class that calls `close` at the end of a `with` or `async with` block."""

    def close(self) -> None:
        """Stop the run and wait until it has ended; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self.close)
