"""HTTP server of a run: its page, its metrics and two commands. Only this package imports aiohttp.

| path | what | token |
|---|---|---|
| `GET /` | one page without external resources | when bound beyond loopback |
| `GET /stats` | strict JSON: the newest snapshot's fields, and its metrics by public name | same |
| `GET /history` | columns of up to 600 moments since the start, all evaluations, for charts | same |
| `GET /events` | server-sent events: a snapshot a second, then `event: end` | same |
| `GET /metrics` | Prometheus text format | same |
| `GET /config` | the run's options | same |
| `GET /healthz`, `/readyz` | 200 while the loop answers / once training steps arrive, else 503 | same |
| `POST /stop` | 202; the run stops as after one Ctrl-C | always |
| `POST /checkpoint` | 200 with the path of a new checkpoint | always |

The token is sent as `Authorization: Bearer TOKEN` or `X-AsyncRL-Token: TOKEN`; for a GET also as `?token=TOKEN` in the
URL.

Every refusal has a JSON body, `{"error": {"status": ..., "message": ...}}`: 401 token, 403 origin, 404 path, 405
method, 408 slow body, 413 body over 64 KB, 421 host, 503 too many streams. What is not HTTP, or has too long a head,
gets aiohttp's plain 400.
"""

from asyncrl.server.app import RunServer
from asyncrl.server.discovery import write_http_file

__all__ = ["RunServer", "write_http_file"]
