"""The page in a headless Chromium: every state of a run, keyboard, screen readers, phones, a path prefix."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from headless_browser import Browser
from levels import Pictured
from serving import PATIENCE_SECONDS, TOKEN, ServerThread
from snapshots import make_actor, make_snapshot
from waiting import wait_until

import asyncrl
from asyncrl.envs.video import VideoWriter
from asyncrl.interfaces import ValuePairs
from asyncrl.server.pages import load_page
from asyncrl.show.evaluation_result import EvaluationFilm
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.metrics import EvaluationResult, OpponentRating, Snapshot

FINISHED: dict[str, Any] = {
    "state": "stopped",
    "stop_reason": "target_return",
    "updates": 2500,
    "actors": (make_actor(0, state="stopped"), make_actor(1, state="stopped")),
}


@pytest.fixture
def run() -> Iterator[ServerThread]:
    """A server of one run, closed after the test."""
    thread = ServerThread().start()
    yield thread
    thread.close()


def at(second: int, **fields: Any) -> Snapshot:
    """A run in its n-th second, with one evaluation per second."""
    evaluations = tuple(
        EvaluationResult(10.0 * i, 1.0, 9.0, 5, i, 100 * i, 1.0 * i, 10 * i) for i in range(1, second)
    )
    values: dict[str, Any] = {
        "env_steps": 100 * second,
        "wall_seconds": float(second),
        "return_mean": 5.0 * second,
        "evaluations": evaluations,
        "train_metrics": {"train/td_error": 1.0 / second},
    }
    return make_snapshot(**{**values, **fields})


def with_past(run: ServerThread, seconds: int, **fields: Any) -> None:
    """Give the server a run that has lasted `seconds`."""
    run.server._feed._history.clear()
    for second in range(1, seconds):
        run.server._feed._remember(at(second))
    show(run, at(seconds, **fields))


def show(run: ServerThread, snapshot: Snapshot) -> None:
    run.run.snapshot = snapshot
    run.server._feed._reading = None


def open_page(browser: Browser, run: ServerThread, state: str = "training", **window: int) -> None:
    browser.open(f"http://127.0.0.1:{run.port}/#token={TOKEN}", **window)
    wait_for_state(browser, state)


def wait_for_state(browser: Browser, state: str) -> None:
    browser.wait(f"document.querySelector('#state').textContent.startsWith('{state}')")


def visible(browser: Browser, selector: str) -> bool:
    return bool(browser.evaluate(f"document.querySelector('{selector}').checkVisibility()"))


def chart(browser: Browser, title: str) -> str:
    """JavaScript expression for the element of a chart with this title."""
    named = f"c.querySelector('h2').textContent === '{title}'"
    expression = f"[...document.querySelectorAll('.chart')].find((c) => {named})"
    browser.wait(f"Boolean({expression})")
    return expression


def test_training_shows_charts_of_everything(browser: Browser, run: ServerThread) -> None:
    with_past(run, 70)
    open_page(browser, run)
    browser.wait("document.body.innerText.includes('a bar for')")  # charts are drawn after the first snapshot
    text = browser.text()
    for part in (
        *("dqn · CartPole-v1", "7,000 of 4,000 steps", "nearest stop: 4,000 steps, also at return 475"),
        *(
            "acting 2.6 updates behind",
            "train/td_error",
            "Policy lag, since the start",
            "1,000 steps, a bar for",
        ),
        *("Samples per insert", "Ring fill", "2 of 2 alive"),
    ):
        assert part in text, part
    browser.wait(f"{chart(browser, 'Return')}.querySelectorAll('circle').length >= 69")
    assert browser.evaluate(f"{chart(browser, 'Return')}.querySelectorAll('circle.mark').length") == 69
    assert browser.evaluate(f"{chart(browser, 'train/td_error')}.querySelectorAll('path').length") >= 1
    assert "env" in browser.evaluate("document.querySelector('#options').textContent")
    assert browser.console == []


def test_the_page_shows_episodes_actions_values_and_times(browser: Browser, run: ServerThread) -> None:
    with_past(run, 20, train_metrics={"train/q_mean": 3.0, "train/value_low": -1.0, "train/value_high": 9.0})
    open_page(browser, run)
    count = "{}.querySelectorAll('{}').length"
    for title, shape, number in (
        ("Returns", ".bin", 4),
        ("Episode lengths", ".bin", 4),
        ("Actions", ".bin", 2),
        ("Predicted value, realised return", ".pair", 3),
        ("An environment step, \u00b5s", "path.stroke", 4),
        ("An update, \u00b5s", "path.stroke", 3),
        ("Processors in use, cores", "path.stroke", 2),
        ("Memory, MB", "path.stroke", 3),
        ("GPU, share of the time in use", "path.stroke", 1),
        ("Success rate", "path.stroke", 1),
        ("train/q_mean", "path.stroke", 1),
    ):
        browser.wait(f"{count.format(chart(browser, title), shape)} >= {number}")
    titles = browser.evaluate("[...document.querySelectorAll('.chart h2')].map((h) => h.textContent)")
    assert len(set(titles)) == len(titles)
    assert "train/value_low" not in titles, "in the chart of the mean"
    words = browser.evaluate(f"{chart(browser, 'train/q_mean')}.querySelector('.legend').textContent")
    assert words == "q_mean 3value_low -1value_high 9"
    name = browser.evaluate(f"{chart(browser, 'Actions')}.querySelector('svg').getAttribute('aria-label')")
    assert name == "Actions, by action. 0: 60%, 1: 40%"
    lengths = browser.evaluate(f"{chart(browser, 'Episode lengths')}.querySelector('.bin title').textContent")
    assert lengths == "90\u201399: 16.67% (5 training episodes)"
    pairs = browser.evaluate(f"{chart(browser, 'Predicted value, realised return')}.textContent")
    assert "predicted 1 too low on average" in pairs
    assert browser.console == []


def test_what_the_user_logs_has_charts_in_a_group_of_its_own(browser: Browser, run: ServerThread) -> None:
    with_past(run, 2)
    open_page(browser, run)
    chart(browser, "Returns")
    assert not visible(browser, "#logged-bar")
    for second in range(2, 20):
        run.server._feed._remember(at(second, logged={"probe/score": float(second % 5)}))
    show(run, at(20, logged={"probe/score": 2.0, "<b>mine</b>": 7.0}))
    found = chart(browser, "probe/score")
    browser.wait(f"{found}.querySelector('.legend').textContent === 'probe/score 2'")
    open_page(browser, run)  # the past comes from /history
    browser.wait(f"{chart(browser, 'probe/score')}.querySelectorAll('path.stroke').length === 1")
    titles = browser.evaluate("[...document.querySelectorAll('#logged .chart h2')].map((h) => h.textContent)")
    assert titles == ["probe/score", "<b>mine</b>"] and visible(browser, "#logged-bar")
    assert browser.console == []


def test_numbers_that_a_run_lacks_have_no_chart(browser: Browser, run: ServerThread) -> None:
    lacking = {
        "success_rate": None,
        "gpu_utilization": None,
        "gpu_bytes": None,
        "bins": {},
        "value_pairs": None,
    }
    evaluation = replace(make_snapshot().evaluations[0], success_rate=None)
    show(run, at(5, **lacking, evaluation=evaluation, evaluations=(evaluation,)))
    open_page(browser, run)
    browser.wait("document.querySelector('#actors-more').textContent !== ''")
    shown = (
        "[...document.querySelectorAll('.chart')].filter((c) => c.checkVisibility())"
        ".map((c) => c.querySelector('h2').textContent)"
    )
    titles = browser.evaluate(shown)
    for title in (
        "Success rate",
        "GPU, share of the time in use",
        "Actions",
        "Predicted value, realised return",
    ):
        assert title not in titles
    assert "Returns" in titles and browser.console == []


def test_the_page_is_small_and_sends_no_comment() -> None:
    body, _ = load_page()
    assert len(body) < 60_000 and b"/*" not in body


def test_the_film_of_the_last_evaluation_is_shown_and_replaced(
    browser: Browser, run: ServerThread, tmp_path: Path
) -> None:
    films = []
    for name, steps in (("first", 12), ("second", 30)):
        films.append(tmp_path / f"{name}.mp4")
        env = Pictured("rgb_array")
        env.reset()
        with VideoWriter(films[-1], 10.0, 320) as video:
            for _ in range(steps):
                env.step(0)
                video.write(env.render())
    with_past(run, 5)
    open_page(browser, run)
    assert not visible(browser, "#film-card"), "a run without films"
    show(run, at(6, film=EvaluationFilm(400, 7.25, 12, False)))
    assert run.ask("/film").status == 204 and not visible(browser, "#film-card"), "its file is not there"
    for second, film, seen in ((7, films[0], 12), (8, films[1], 30)):
        run.server._film = lambda film=film: film  # type: ignore[misc]
        assert run.ask("/film").body == film.read_bytes()
        show(run, at(second, film=EvaluationFilm(100 * second, 7.25, seen, second == 8)))
        browser.wait(f"document.querySelector('#film').duration === {seen / 10}")
    assert browser.evaluate(
        "[document.querySelector('#film').videoWidth, document.querySelector('#film').videoHeight]"
    ) == [320, 240]
    more = browser.evaluate("document.querySelector('#film-more').textContent")
    assert more == "first episode at step 800 \u00b7 return 7.25 \u00b7 30 steps, cut there"
    assert visible(browser, "#film-card") and browser.console == []


def test_a_film_whose_request_failed_is_asked_for_again(
    browser: Browser, run: ServerThread, tmp_path: Path
) -> None:
    (film := tmp_path / "film.mp4").write_bytes(b"a film")
    answers = iter((None, film))  # 204 without a file
    run.server._film = lambda: next(answers)
    with_past(run, 5)
    open_page(browser, run)
    browser.evaluate("""{
        const send = window.fetch; let lost = 0;
        window.fetch = (path, how) => path === "film" && !lost++ ? Promise.reject("lost") : send(path, how);
    }""")
    show(run, at(6, film=EvaluationFilm(400, 7.25, 12, False)))
    browser.wait("document.querySelector('#film').src.startsWith('blob:')")
    assert visible(browser, "#film-card") and browser.console == []


def test_every_group_has_a_row(browser: Browser, run: ServerThread) -> None:
    counts = {"fusion": "average", "fusions": 7, "sent_bytes": 2_500_000, "wait_seconds": 1.25}
    groups = (
        GroupStatistics(0, "here", state="training", env_steps=1200, policy_lag_mean=2.64, **counts),
        GroupStatistics(1, "there", state="starting", updates=30, policy_lag_mean=11.0, **counts),
    )
    with_past(run, 5)
    open_page(browser, run)
    browser.wait("document.querySelector('#actors-more').textContent !== ''")
    assert not visible(browser, "#groups-card")
    show(run, at(6, groups=groups))
    browser.wait("document.querySelectorAll('#groups tr').length === 2")
    assert visible(browser, "#groups-card")
    head = browser.evaluate(
        "[...document.querySelectorAll('#group-head th')].map((c) => c.textContent).join('|')"
    )
    names = head.split("|")
    row = "[...document.querySelectorAll('#groups tr')[{}].cells].map((c) => c.textContent).join('|')"
    rows = [
        dict(zip(names, browser.evaluate(row.format(i)).split("|"), strict=True)) for i in range(len(groups))
    ]
    wanted = [
        {
            "group": "0",
            "host": "here",
            "state": "training",
            "steps": "1,200",
            "policy lag": "2.6",
            "fusions": "7",
        },
        {
            "group": "1",
            "host": "there",
            "state": "starting",
            "updates": "30",
            "policy lag": "11.0",
            "MB sent": "2.5",
        },
    ]
    for shown, expected in zip(rows, wanted, strict=True):
        assert {name: shown[name] for name in expected} == expected
        assert shown["waited"] in ("1.3 s", "1.2 s")
    more = browser.evaluate("document.querySelector('#groups-more').textContent")
    assert more.startswith("fusion by average") and browser.console == []


def test_every_past_version_has_a_row(browser: Browser, run: ServerThread) -> None:
    opponents = (OpponentRating(12_000, 1288.4, 40, 0.75), OpponentRating(11_000, 1190.0, 7, 0.5))
    with_past(run, 5)
    open_page(browser, run)
    browser.wait("document.querySelector('#actors-more').textContent !== ''")
    assert not visible(browser, "#opponents-card")
    show(run, at(6, opponents=opponents))
    browser.wait("document.querySelectorAll('#opponents tr').length === 2")
    assert visible(browser, "#opponents-card")
    row = "[...document.querySelectorAll('#opponents tr')[{}].cells].map((c) => c.textContent).join('|')"
    assert browser.evaluate(row.format(0)) == "12,000|1,288|75%|40"
    assert browser.evaluate(row.format(1)) == "11,000|1,190|50%|7"
    more = browser.evaluate("document.querySelector('#opponents-more').textContent")
    assert more.startswith("the policy itself: Elo 1,31") and browser.console == []
    show(run, at(7, opponents=opponents[:1]))
    browser.wait("document.querySelectorAll('#opponents tr').length === 1")


def test_a_chart_of_a_constant_with_rounding_has_distinct_labels(browser: Browser, run: ServerThread) -> None:
    run.server._feed._history.clear()
    for second in range(1, 9):
        run.server._feed._remember(
            at(second, train_metrics={"train/value_high": 200.0 - 1e-5 * (second % 2)})
        )
    show(run, at(9, train_metrics={"train/value_high": 200.0}))
    open_page(browser, run)
    texts = f"{chart(browser, 'train/value_high')}.querySelectorAll('text[text-anchor=end]')"
    browser.wait(f"{texts}.length > 0")
    labels = browser.evaluate(f"[...{texts}].map((text) => text.textContent).join(' ')").split()
    assert len(labels) >= 3 and len(set(labels)) == len(labels)


def test_marks_of_values_that_differ_by_little_are_distinct(browser: Browser, run: ServerThread) -> None:
    show(run, at(9, value_pairs=ValuePairs((99.932, 99.94), (99.938, 99.948))))
    open_page(browser, run)
    texts = (
        f"{chart(browser, 'Predicted value, realised return')}.querySelectorAll('text[text-anchor=middle]')"
    )
    browser.wait(f"{texts}.length > 0")
    labels = browser.evaluate(f"[...{texts}].map((text) => text.textContent).join(' ')").split()
    assert len(labels) >= 3 and len(set(labels)) == len(labels)


def test_the_axis_is_steps_or_time_and_can_be_zoomed(browser: Browser, run: ServerThread) -> None:
    with_past(run, 50)
    open_page(browser, run)
    browser.evaluate("document.querySelector('#axis-steps').click()")
    labels = (
        f"[...{chart(browser, 'Return')}.querySelectorAll('svg text')].map((t) => t.textContent).join(' ')"
    )
    browser.wait(f"/[45]K/.test({labels})")
    browser.evaluate("document.querySelector('#axis-time').click()")
    browser.wait(f"/40s/.test({labels})")
    assert browser.evaluate("document.querySelector('#axis-time').getAttribute('aria-pressed')") == "true"
    box = browser.evaluate(
        f"{chart(browser, 'Return')}.querySelector('svg').getBoundingClientRect().toJSON()"
    )
    y = box["y"] + 80
    browser.drag((box["x"] + box["width"] * 0.4, y), (box["x"] + box["width"] * 0.6, y))
    browser.wait("document.querySelector('#whole').checkVisibility()")
    browser.wait(f"/2[0-9]s/.test({labels}) && !/40s/.test({labels})")
    browser.evaluate("document.querySelector('#whole').click()")
    browser.wait(f"/40s/.test({labels})")


def test_an_actor_that_restarts_says_so(browser: Browser, run: ServerThread) -> None:
    dead = make_actor(1, pid=0, state="restarting", restarts=2, last_error="[ASYNC003] killed by SIGKILL")
    with_past(run, 5, actors=(make_actor(0), dead))
    open_page(browser, run)
    row = browser.text("#actors tr:nth-child(2)")
    assert "restarting" in row and "[ASYNC003] killed by SIGKILL" in row
    assert "1 of 2 alive" in browser.text("#actors-more")


def test_a_run_that_failed_says_so_with_its_error(browser: Browser, run: ServerThread) -> None:
    with_past(run, 5)
    open_page(browser, run)
    # The run's order: the last snapshot is published, then the server closes.
    show(run, at(5, state="failed", stop_reason="failed", error="[ASYNC011] reward is nan\n  actor: 1"))
    run.call(run.server.close())
    wait_for_state(browser, "failed")
    assert "[ASYNC011] reward is nan\n  actor: 1" in browser.text("#error").replace("\xa0", " ")
    assert "bad" in browser.evaluate("document.querySelector('#state').className")
    browser.wait("document.querySelector('#link').textContent.includes('has ended')")
    assert not visible(browser, "#stop") and not visible(browser, "#checkpoint")
    assert browser.evaluate("getComputedStyle(document.querySelector('#main')).opacity") == "1"
    assert browser.evaluate("document.title").startswith("failed")


SERVE = """
import sys
sys.path[:0] = {paths!r}
from serving import ServerThread
thread = ServerThread().start()
print(thread.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def trainer() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves a run, and its port."""
    here = Path(__file__).parent
    script = SERVE.format(paths=[str(here), str(here.parent)])
    environment = {**os.environ, "PYTHONPATH": str(Path(asyncrl.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_trainer_that_was_killed_or_stands_still_is_not_answering(
    browser: Browser, end: signal.Signals
) -> None:
    with trainer() as (process, port):
        browser.open(f"http://127.0.0.1:{port}/#token={TOKEN}")
        wait_for_state(browser, "training")
        assert visible(browser, "#stop")
        process.send_signal(end)
        wait_for_state(browser, "not answering since ")
        assert browser.evaluate("Number(getComputedStyle(document.querySelector('#main')).opacity)") < 0.6
        assert not visible(browser, "#stop") and not visible(browser, "#checkpoint")
        assert browser.evaluate("document.title").startswith("not answering")
        assert "1,000 of 4,000 steps" in browser.text("#steps"), "the last numbers stay"
        if end == signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
            wait_for_state(browser, "training")
            assert browser.evaluate("getComputedStyle(document.querySelector('#main')).opacity") == "1"


def test_a_run_that_finished_shows_totals_and_no_buttons(browser: Browser, run: ServerThread) -> None:
    with_past(run, 20)
    open_page(browser, run)
    show(run, at(20, **FINISHED))
    wait_for_state(browser, "finished: target return reached")
    assert browser.text("#left") == "100% · target return reached"
    assert browser.evaluate("document.querySelector('#bar').getAttribute('aria-valuenow')") == "100"
    assert browser.text("#fps") == "2,000" and browser.text("#ups") == "2,500"
    assert "200/s on average" in browser.text("#fps-more")
    assert visible(browser, "#trained") and not visible(browser, "#waiting")
    assert not visible(browser, "#stop") and not visible(browser, "#checkpoint")
    rows = browser.text("#actors")
    assert rows.count("ended") == 2 and "running" not in rows and "10 ms" not in rows


@pytest.mark.parametrize("reason", ["stopped", "interrupted"])
def test_a_run_that_was_ended_early_keeps_its_share(browser: Browser, run: ServerThread, reason: str) -> None:
    with_past(run, 20, state="stopped", stop_reason=reason)
    open_page(browser, run, reason)
    assert browser.text("#left") == f"50% · {reason}"


def test_the_final_evaluation_says_how_far_it_is(browser: Browser, run: ServerThread) -> None:
    with_past(run, 20, state="evaluating", final_evaluation=(37, 100))
    open_page(browser, run, "evaluating")
    assert "final evaluation 37/100" in browser.text("#left")


def test_the_token_of_the_fragment_stops_and_saves_by_keyboard(browser: Browser, run: ServerThread) -> None:
    open_page(browser, run)
    browser.evaluate("document.querySelector('#checkpoint').focus()")
    browser.press("Enter")
    browser.wait("document.querySelector('#link').textContent.includes('runs/x/checkpoints/latest')")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "stop"
    browser.press(" ")
    assert run.run.stops == 0 and "Really stop" in browser.text("#stop")
    browser.press("Enter")
    wait_until(lambda: run.run.stops == 1, "the stop")


def test_without_a_token_there_are_no_buttons(browser: Browser, run: ServerThread) -> None:
    browser.open(f"http://127.0.0.1:{run.port}/")
    wait_for_state(browser, "training")
    assert not visible(browser, "#stop") and not visible(browser, "#checkpoint")


def test_a_chart_is_read_with_the_arrow_keys(browser: Browser, run: ServerThread) -> None:
    with_past(run, 40)
    open_page(browser, run)
    browser.evaluate("document.querySelector('#axis-steps').click()")
    svg = f"{chart(browser, 'Return')}.querySelector('svg')"
    browser.wait(f"/training 200, evaluation 390, target 475$/.test({svg}.getAttribute('aria-label'))")
    browser.evaluate(f"{svg}.focus()")
    for _ in range(20):
        browser.press("ArrowLeft")
    browser.wait(f"/training 10[05], .* at step 2,0/.test({svg}.getAttribute('aria-label'))")
    browser.press("Escape")
    browser.wait(f"!/at step/.test({svg}.getAttribute('aria-label'))")


def test_screen_readers_get_roles_and_names(browser: Browser, run: ServerThread) -> None:
    with_past(run, 30)
    open_page(browser, run)
    svg = f"{chart(browser, 'Return')}.querySelector('svg')"
    browser.wait(f"/training 150/.test({svg}.getAttribute('aria-label'))")
    nodes = browser.accessible()
    for role, name in (
        *(("progressbar", "Progress to the nearest stop"), ("table", "Actors"), ("button", "Stop")),
        *(("button", "Switch between light and dark"), ("columnheader", "pid"), ("heading", "Return")),
        *(("group", "Horizontal axis"), ("main", ""), ("link", "Skip to the numbers")),
    ):
        assert (role, name) in nodes, (role, name)
    assert any(role == "status" for role, _ in nodes)
    images = [name for role, name in nodes if role == "image"]
    assert any(name.startswith("Return: training 150") for name in images), images
    assert any(name.startswith("Policy lag, since the start, by updates. 0: 10%") for name in images), images
    assert all(name for role, name in nodes if role in ("button", "link", "image", "heading"))


def test_motion_is_reduced_where_that_is_preferred(browser: Browser, run: ServerThread) -> None:
    open_page(browser, run)
    moving = "getComputedStyle(document.querySelector('#bar i')).transitionProperty"
    assert browser.evaluate(moving) == "width"
    browser.prefer(prefers_reduced_motion="reduce")
    assert browser.evaluate(moving) == "none"
    browser.prefer()


@pytest.mark.parametrize("width", [320, 390, 800])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, run: ServerThread, width: int) -> None:
    with_past(run, 30, env="package.of.mine:AnEnvironmentWithALongName-v17")
    open_page(browser, run, width=width, height=800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert visible(browser, "#stop")


def test_bins_of_the_histogram_are_equally_wide_and_lose_nothing(browser: Browser, run: ServerThread) -> None:
    open_page(browser, run)
    edges = [*range(16), 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    counts = [10] * 16 + [40, 40, 40, 40, 80, 80, 80, 80, 160, 160, 1, 0, 2]
    cut = browser.evaluate(f"equalBins({edges}, {counts})")
    *bins, beyond = cut["bins"]
    assert cut["size"] == 16 and [b["from"] for b in bins] == [16 * i for i in range(6)]
    assert {b["to"] - b["from"] + 1 for b in bins} == {16}
    assert [b["count"] for b in bins] == [160] * 6, "equal density gives equal bars"
    assert (beyond["from"], beyond["to"], beyond["count"]) == (96, None, 3)
    assert browser.evaluate("equalBins([0, 1, 2], [5, 0, 7]).bins.map((b) => b.count)") == [5, 0, 7, 0, 0, 0]


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[int]:
    """Reverse proxy under a path, like jupyter-server-proxy: it forwards the browser's headers."""

    async def forward(request: web.Request) -> web.StreamResponse:
        url = f"http://127.0.0.1:{port}/{request.match_info['path']}"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, url, headers=request.headers) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", prefix + "{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        ports.append(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        started.set()
        await ended.wait()
        await runner.cleanup()

    ports: list[int] = []
    loop, started = asyncio.new_event_loop(), threading.Event()
    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_SECONDS)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE_SECONDS)
        loop.close()


def test_the_page_works_under_a_path_prefix(browser: Browser, run: ServerThread) -> None:
    with proxy(run.port, "/user/me/proxy/8888/") as port:
        browser.open(f"http://127.0.0.1:{port}/user/me/proxy/8888/#token={TOKEN}")
        wait_for_state(browser, "training")
        browser.wait("document.querySelector('#options').textContent.includes('CartPole-v1')")
        browser.evaluate("document.querySelector('#checkpoint').click()")
        browser.wait("document.querySelector('#link').textContent.includes('checkpoint written')")
        browser.open("about:blank")
