"""Answers of each path."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
import threading
from contextlib import closing
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import pytest
from serving import TOKEN, EventStream, ServerThread
from snapshots import make_actor, make_snapshot
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl.errors import CheckpointError
from asyncrl.server import pages
from asyncrl.server.run_server import Reading, SnapshotFeed
from asyncrl.show.metrics import FIELDS, METRIC_NAMES, EvaluationResult

PATHS = ("/", "/stats", "/history", "/metrics", "/config", "/healthz", "/readyz")
KINDS = {"/": "text/html", "/metrics": "text/plain"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_path_answers(server: ServerThread, path: str, method: str) -> None:
    answer = server.ask(path, method=method)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith(KINDS.get(path, "application/json"))
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Server"] == "asyncrl"
    assert not any(name.lower().startswith("access-control") for name in answer.headers)
    assert bool(answer.body) is (method == "GET")


def test_stats_has_every_field_and_every_metric(server: ServerThread) -> None:
    server.show(make_snapshot(train_metrics={"train/td_error": 0.5}))
    stats = server.ask("/stats").json()
    assert set(FIELDS) | set(METRIC_NAMES) | {"train/td_error"} == set(stats)
    assert stats["env_steps"] == stats["time/total_timesteps"] == 1000
    assert stats["actors"][1]["pid"] == 4001
    assert stats["evaluation"]["return_mean"] == stats["eval/mean_reward"] == 200.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_stats_stays_strict_json(server: ServerThread, bad: float) -> None:
    actors = (make_actor(last_error='</script>\u2028"\n', env_steps_per_second=bad),)
    server.show(make_snapshot(loss=bad, return_mean=bad, train_metrics={"train/x": bad}, actors=actors))
    stats = server.ask("/stats").json()
    assert stats["loss"] is stats["train/loss"] is stats["train/x"] is stats["return_mean"] is None
    assert stats["actors"][0]["last_error"] == '</script>\u2028"\n'
    with closing(server.stream()) as stream:
        event = stream.snapshot()
    assert json.loads(event.removeprefix("data: "), parse_constant=pytest.fail)["loss"] is None


def test_a_snapshot_is_made_at_most_five_times_a_second(server: ServerThread) -> None:
    clock = server.loop.time
    began = clock()
    for path in ("/stats", "/metrics", "/healthz") * 20:
        server.ask(path)
    seconds = clock() - began
    assert 1 <= server.run.taken <= 2 + seconds / 0.2 + seconds


def test_a_failing_snapshot_breaks_nothing_else(server: ServerThread) -> None:
    server.run.fails = RuntimeError("no snapshot")
    answer = server.ask("/stats")
    assert answer.status == 500 and answer.json()["error"]["status"] == 500
    assert b"no snapshot" not in answer.body
    assert server.ask("/healthz").status == 200
    with closing(server.stream()) as stream:
        assert stream.event() == "retry: 2000"
        assert stream.event() == ": no snapshot"
        server.run.fails = None
        assert stream.snapshot().startswith("data: {")


@pytest.mark.parametrize("shared", ["uvloop"], indirect=True)
def steps(stream: EventStream) -> int:
    return int(json.loads(stream.snapshot().removeprefix("data: "))["env_steps"])


def test_events_bring_a_snapshot_at_once_and_then_one_a_second(server: ServerThread) -> None:
    with closing(server.stream()) as stream:
        assert stream.response.status == 200
        assert stream.response.headers["Content-Type"] == "text/event-stream"
        assert stream.event() == "retry: 2000"
        assert steps(stream) == 1000
        began = server.loop.time()
        server.run.snapshot = make_snapshot(env_steps=2000)
        while steps(stream) == 1000:  # a second has passed meanwhile on a busy machine
            pass
        assert steps(stream) == 2000
        assert server.loop.time() - began > 0.9


def test_history_keeps_what_was(server: ServerThread) -> None:
    wait_until(lambda: server.ask("/history").json()["evaluations"], "a first moment")
    history = server.ask("/history").json()
    evaluations, train = history.pop("evaluations"), history.pop("train")
    assert history.pop("logged") == {}
    history |= train
    assert len({len(column) for column in history.values()}) == 1
    assert {"wall_seconds", "return_mean", "policy_lag_mean", "staleness_p95"} <= set(history)
    assert [(e["env_steps"], e["updates"], e["return_mean"]) for e in evaluations] == [(900, 220, 200.0)]


def test_history_has_a_column_for_every_number_of_the_algorithm() -> None:
    feed = SnapshotFeed(make_snapshot)
    feed._remember(make_snapshot(train_metrics={}))
    feed._remember(make_snapshot(train_metrics={"train/td_error": 0.5}))
    feed._remember(make_snapshot(train_metrics={"train/td_error": 0.25, "train/q_mean": 3.0}))
    history = json.loads(feed.history())
    assert history["train"] == {"train/td_error": [None, 0.5, 0.25], "train/q_mean": [None, None, 3.0]}
    assert len(history["env_steps"]) == 3


def test_history_and_stats_have_what_the_user_logs() -> None:
    feed = SnapshotFeed(make_snapshot)
    feed._remember(make_snapshot())
    feed._remember(make_snapshot(logged={"probe/score": 0.5}))
    feed._remember(make_snapshot(logged={"probe/score": math.nan, "mine": 3.0}))
    assert json.loads(feed.history())["logged"] == {
        "probe/score": [None, 0.5, None],
        "mine": [None, None, 3.0],
    }
    reading = Reading(make_snapshot(logged={"a": 1.0, "b": math.inf}, logged_now={"a": 1.0}))
    stats = json.loads(reading.json)
    assert (stats["logged"], stats["logged_now"], stats["a"]) == ({"a": 1.0, "b": None}, {"a": 1.0}, 1.0)


def test_prometheus_has_what_the_user_logs_by_its_name(server: ServerThread) -> None:
    server.show(make_snapshot(logged={"a.b": 1.0, "a_b": 2.0, "my probe/x": math.nan}))
    samples, _ = parse_prometheus(server.ask("/metrics").body.decode())
    assert samples["asyncrl_logged", (("name", "a.b"),)] == 1.0
    assert samples["asyncrl_logged", (("name", "a_b"),)] == 2.0
    assert math.isnan(samples["asyncrl_logged", (("name", "my probe/x"),)])


def evaluations_of(count: int) -> tuple[EvaluationResult, ...]:
    return tuple(EvaluationResult(float(i), 0.0, 9.0, 5, i, 100 * i, 0.1 * i, 10 * i) for i in range(count))


def test_history_and_events_have_every_evaluation_however_many_came_in_a_second(server: ServerThread) -> None:
    def told(stream: EventStream) -> tuple[int, list[float]]:
        while not (event := stream.event()).startswith("event: evaluations"):
            assert event
        news = json.loads(event.partition("data: ")[2])
        return news["first"], [e["return_mean"] for e in news["evaluations"]]

    server.show(make_snapshot(evaluations=evaluations_of(3)))
    with closing(server.stream()) as stream:
        # The feed may have kept the snapshot from before for a moment.
        seen: list[float] = []
        while len(seen) < 3:
            first, means = told(stream)
            seen[first:] = means
        assert seen == [0.0, 1.0, 2.0] or seen == [200.0, 1.0, 2.0]
        server.run.snapshot = make_snapshot(evaluations=evaluations_of(8))
        assert told(stream) == (3, [3.0, 4.0, 5.0, 6.0, 7.0]), "only what is new"
        server.run.snapshot = make_snapshot(evaluations=evaluations_of(8)[::-2][::-1])
        assert told(stream) == (0, [1.0, 3.0, 5.0, 7.0]), "all of them, where the run has thinned them"
        server.run.snapshot = make_snapshot(evaluations=evaluations_of(8))
    wait_until(lambda: len(server.ask("/history").json()["evaluations"]) == 8, "a moment with all of them")
    assert [e["return_mean"] for e in server.ask("/history").json()["evaluations"]] == [*range(8)]
    assert "evaluations" not in server.ask("/stats").json()


def test_prometheus_text_parses(server: ServerThread) -> None:
    evil = 'a"b\\c\nd'
    server.show(make_snapshot(env=evil, loss=math.nan, return_mean=None, exploration_rate=math.inf))
    answer = server.ask("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples, kinds = parse_prometheus(answer.body.decode())
    assert samples["asyncrl_env_steps_total", ()] == 1000
    assert kinds["asyncrl_env_steps_total"] == "counter"
    assert math.isnan(samples["asyncrl_loss", ()])
    assert samples["asyncrl_exploration_rate", ()] == math.inf
    assert ("asyncrl_return_mean", ()) not in samples
    assert samples["asyncrl_actor_env_steps_total", (("actor", "1"),)] == 500
    assert samples["asyncrl_received_steps_per_second", ()] == 3390.0
    assert samples["asyncrl_consumed_samples_per_second", ()] == 13532.0
    assert samples["asyncrl_consumption_per_production", ()] == 3.98
    assert samples["asyncrl_info", (("algo", "dqn"), ("env", evil), ("seed", "3"))] == 1
    assert samples["asyncrl_discipline", (("discipline", "replay"),)] == 1
    assert samples["asyncrl_state", (("state", "training"),)] == 1
    assert samples["asyncrl_state", (("state", "failed"),)] == 0


def test_prometheus_has_train_metrics_and_evaluations(server: ServerThread) -> None:
    server.show(make_snapshot(train_metrics={"train/td_error": 0.5, "train/q-values.mean": 2.0}))
    samples, _ = parse_prometheus(server.ask("/metrics").body.decode())
    assert samples["asyncrl_train_td_error", ()] == 0.5
    assert samples["asyncrl_train_q_values_mean", ()] == 2.0
    assert samples["asyncrl_evaluation_return_mean", ()] == 200.0
    assert samples["asyncrl_evaluation_return_std", ()] == 12.5
    assert samples["asyncrl_evaluation_best_return_mean", ()] == 200.0
    assert samples["asyncrl_evaluation_episode_length_mean", ()] == 210.0
    assert samples["asyncrl_evaluations", ()] == 1


def test_returns_of_agents_are_series_of_their_own_whatever_their_names(server: ServerThread) -> None:
    returns = {"\u03b1": 1.0, "\u03b2": 2.0, "a.b": 3.0, "a_b": 4.0}
    server.show(
        make_snapshot(train_metrics={f"rollout/ep_rew_mean/{name}": value for name, value in returns.items()})
    )
    text = server.ask("/metrics").body.decode()
    samples, _ = parse_prometheus(text)
    found = {name: samples["asyncrl_return_mean_by_agent", (("agent", name),)] for name in returns}
    assert found == returns
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_no_series_of_prometheus_ends_while_the_run_goes_on(server: ServerThread) -> None:
    def series(**fields: Any) -> set[object]:
        server.show(make_snapshot(**fields))
        return set(parse_prometheus(server.ask("/metrics").body.decode())[0])

    before = series()
    assert before == series(
        state="evaluating", actors=(make_actor(0, state="restarting", pid=0), make_actor(1))
    )
    assert before == series(state="failed", actors=(make_actor(0, state="stopped", pid=9), make_actor(1)))


@pytest.mark.parametrize(
    ("module", "library"),
    [("asyncrl.server.run_server", "prometheus_client"), ("asyncrl.run.run", "aiohttp")],
)
def test_a_library_is_loaded_when_it_is_needed_only(module: str, library: str) -> None:
    script = f"import sys, {module}; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_SECONDS).returncode == 0


def test_the_staleness_histogram_is_cumulative(server: ServerThread) -> None:
    samples, kinds = parse_prometheus(server.ask("/metrics").body.decode())
    # Counts 10, 20, 5, 1 from 0, 1, 2 and 4 updates on: at most 0, 1 and 3 are 10, 30 and 35.
    buckets = {labels[0][1]: v for (name, labels), v in samples.items() if name == "asyncrl_staleness_bucket"}
    assert buckets == {"0": 10, "1": 30, "3": 35, "+Inf": 36}
    assert kinds["asyncrl_staleness"] == "histogram"
    assert samples["asyncrl_staleness_count", ()] == 36
    assert samples["asyncrl_staleness_sum", ()] == 60


def test_policy_lag_and_both_kinds_of_staleness_say_their_units(server: ServerThread) -> None:
    text = server.ask("/metrics").body.decode()
    samples, kinds = parse_prometheus(text)
    for name, value in (
        ("policy_lag_mean", 2.6),
        ("policy_lag_p95", 4),
        ("policy_lag_max", 7),
        ("staleness_mean", 2.1),
        ("staleness_versions_mean", 1.1),
        ("staleness_versions_p95", 2),
        ("staleness_versions_max", 3),
    ):
        assert samples[f"asyncrl_{name}", ()] == value
        unit = "Unit: policy versions" if "versions" in name else "Unit: updates"
        assert re.search(f"# HELP asyncrl_{name} .*{unit}", text), name
    assert samples["asyncrl_publish_interval", ()] == 4
    assert samples["asyncrl_publish_seconds", ()] == 25e-6
    assert samples["asyncrl_evaluation_env_steps", ()] == 900
    assert kinds["asyncrl_policy_lag"] == "histogram"
    assert samples["asyncrl_policy_lag_bucket", (("le", "1"),)] == 400
    assert samples["asyncrl_policy_lag_count", ()] == 1000


SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse_prometheus(
    text: str,
) -> tuple[dict[tuple[str, tuple[tuple[str, str], ...]], float], dict[str, str]]:
    """Samples and kinds; fails if the format is invalid or HELP and TYPE do not precede a family."""
    assert text.endswith("\n")
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split(" ", 3)[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helped and name not in kinds
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name in kinds or re.sub("_(bucket|count|sum)$", "", name) in kinds, name
            pairs = tuple(
                (key, re.sub(r"\\.", lambda m: UNESCAPED[m.group()], text))
                for key, text in LABEL.findall(labels or "")
            )
            assert (name, pairs) not in samples, line
            samples[name, pairs] = float(value)
    return samples, kinds


def test_config_shows_values_json_does_not_know(server: ServerThread) -> None:
    server.run.config = {
        "run_dir": PurePosixPath("runs/x"),
        "env": len,
        "dqn": {"gamma": math.nan, "hidden": (64, 64)},
    }
    config = server.ask("/config").json()
    assert config["run_dir"] == "runs/x"
    assert "len" in config["env"]
    assert config["dqn"] == {"gamma": None, "hidden": [64, 64]}


def test_config_shows_keyword_arguments_of_any_literals_and_paths_of_any_bytes(server: ServerThread) -> None:
    server.run.config = {"env_kwargs": {"layout": {(0, 1): "S", None: (1, {2: 3})}}, "run_dir": "r\udcff"}
    config = server.ask("/config").json()
    assert config["env_kwargs"] == {"layout": {"(0, 1)": "S", "None": [1, {"2": 3}]}}
    assert config["run_dir"] == "r\\udcff"


def test_readyz_says_503_until_steps_arrive(server: ServerThread) -> None:
    server.run.ready = False
    answer = server.ask("/readyz")
    assert answer.status == 503 and answer.json() == {"ready": False}
    assert server.ask("/healthz").json()["ok"] is True
    server.run.ready = True
    assert server.ask("/readyz").json() == {"ready": True}


def test_stop_asks_the_run(server: ServerThread) -> None:
    answer = server.ask("/stop", method="POST", token=TOKEN)
    assert answer.status == 202 and answer.json() == {"stopping": True}
    assert server.run.stops == 1


def test_a_checkpoint_is_written_once_for_all_who_ask_meanwhile(server: ServerThread) -> None:
    server.run.checkpoint_gate.clear()
    answers = []
    asks = [
        threading.Thread(target=lambda: answers.append(server.ask("/checkpoint", method="POST", token=TOKEN)))
        for _ in range(3)
    ]
    for ask in asks:
        ask.start()
    http = server.server._runner
    assert http is not None and http.server is not None
    connections = http.server
    wait_until(
        lambda: sum(c._current_request is not None for c in connections.connections) == 3, "three requests"
    )
    server.run.checkpoint_gate.set()
    for ask in asks:
        ask.join()
    assert [a.json() for a in answers] == [{"path": "runs/x/checkpoints/latest"}] * 3
    assert server.run.checkpoints == 1
    assert server.ask("/checkpoint", method="POST", token=TOKEN).status == 200
    assert server.run.checkpoints == 2


def test_a_client_that_leaves_does_not_end_its_checkpoint(server: ServerThread) -> None:
    server.run.checkpoint_gate.clear()
    head = f"POST /checkpoint HTTP/1.1\r\nHost: localhost\r\nX-AsyncRL-Token: {TOKEN}\r\n\r\n"
    server.open(head.encode()).close()
    wait_until(lambda: server.run.checkpoints == 1, "the checkpoint's beginning")
    task = server.server._writing
    assert task is not None
    server.run.checkpoint_gate.set()
    wait_until(task.done, "the checkpoint")
    assert task.result() == "runs/x/checkpoints/latest"


def test_a_checkpoint_that_fails_says_why(server: ServerThread) -> None:
    server.run.checkpoint_fails = CheckpointError("the disk is full", facts={"path": "runs/x"})
    answer = server.ask("/checkpoint", method="POST", token=TOKEN)
    assert answer.status == 500
    assert answer.json()["error"]["message"].startswith("[ASYNC019] the disk is full\n  path: runs/x")


def test_the_page_is_complete_in_itself(server: ServerThread) -> None:
    page = server.ask("/").body.decode()
    assert len(page.encode()) < 60_000, "before its data"
    assert not re.findall(r"""(?:fetch|getJson|command)\("/|href="/""", page), "relative, for a path prefix"
    text = files("asyncrl.server").joinpath("page.html").read_text(encoding="utf-8")
    words = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).split()
    assert page.split() == words, "all but comments and indents"
    assert not re.findall(
        r"""(?:https?:)?//[\w.-]+\.\w+|@import|url\(|<link(?! rel="icon" href="data:,")""", page
    )
    assert not re.findall(
        r"<(?:script|img|iframe|object|embed|base|form)[^>]*\s(?:src|href|action|data)=", page
    )


def test_the_page_cannot_be_made_to_run_what_a_run_says(server: ServerThread) -> None:
    answer = server.ask("/")
    page, policy = answer.body.decode(), answer.headers["Content-Security-Policy"]
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page
    )
    assert not re.findall(r"<[^>]+\son\w+=", page) and not re.findall(r"<[^>]+\sstyle=", page)
    for tag in ("style", "script"):
        (block,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "name", ["progress", "steps", "fps", "return", "wait-learner", "wait-actors", "actors"]
)
def test_the_page_has_a_place_for(name: str) -> None:
    page = pages.load_page()[0].decode()
    assert f'id="{name}"' in page or name.capitalize() in page


def test_the_page_says_how_far_actors_are_behind_and_shows_every_evaluation() -> None:
    page = pages.load_page()[0].decode()
    assert 'acting " + updates(s.policy_lag_mean) + " behind"' in page
    assert (
        "[s.policy_lag_edges, s.policy_lag_counts]" in page
        and "[s.staleness_edges, s.staleness_counts]" in page
    )
    assert "event: evaluations" in page


def test_the_page_reads_only_fields_that_exist() -> None:
    page = pages.load_page()[0].decode()
    fields = set(FIELDS)
    used = set(re.findall(r"\bs(?:napshot)?\.([a-z]+(?:_[a-z0-9]+)+)", page)) | set(
        re.findall(r'field: "(\w+)"', page)
    )
    assert used - {"evaluation"} <= fields, used - fields
    actor = set(make_actor().__dataclass_fields__)
    assert set(re.findall(r"\ba\.([a-z]+_[a-z_]+)", page)) <= actor
