"""What the addresses of the site answer, without a browser."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from tests.packed_pages import figures_of
from tests.serve.conftest import WrittenRuns
from undergrowth.report.run_page import build_page
from undergrowth.report.run_record import load_records
from undergrowth.serve import run_pages
from undergrowth.serve.site import build_app


def compared(*names: str, path: str = "/compare") -> str:
    return f"{path}?{urlencode([('run', name) for name in names])}"


def ids(page: str) -> list[str]:
    return re.findall(r'href="/runs/([^"]+)"', page)


def cell(page: str, run: str, title: str) -> str:
    """A cell of the row of a run, without markup."""
    row = next(row for row in re.findall(r"<tr\b.*?</tr>", page, re.S) if f'value="{run}"' in row)
    return re.sub(r"<[^>]*>", "", re.search(rf'<td[^>]*data-title="{title}"[^>]*>(.*?)</td>', row)[1])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the pages that are built, by their runs."""
    found: Counter[str] = Counter()

    def count(records: Any) -> Any:
        found[" ".join(record.run for record in records)] += 1
        return build_page(records)

    monkeypatch.setattr(run_pages, "build_page", count)
    return found


def test_the_list_has_every_run_with_its_state(runs: WrittenRuns, client: TestClient) -> None:
    done = runs.finished("fedprox", options={"mu": 0.5}, seed=3)
    killed = runs.begin()
    with runs.running(rounds=4) as running:
        runs.finish_round(running, 1)
        page = client.get("/").text
    assert sorted(ids(page), reverse=True) == sorted([done, killed, running], reverse=True)
    assert ids(page)[-1] == done  # the newest first
    states = {run: cell(page, run, "state") for run in ids(page)}
    assert states == {done: "done", killed: "killed", running: "running"}
    titles = ("method", "data", "model", "seed", "rounds", "accuracy", "simulated")
    assert [cell(page, done, title) for title in titles] == [
        "fedprox, mu 0.5", "digits", "cnn", "3", "2", "0.2000", "4 s",
    ]  # fmt: skip
    assert cell(page, running, "rounds") == "1 of 4" and page.count('<progress value="0.2500">') == 1
    assert cell(page, killed, "accuracy") == "–"


def test_a_folder_without_runs_waits_for_the_first(tmp_path: Path) -> None:
    client = TestClient(build_app(tmp_path), base_url="http://127.0.0.1")
    assert "No run yet" in client.get("/").text
    run = WrittenRuns(tmp_path).finished()
    assert ids(client.get("/rows").text) == [run]


def test_the_page_of_a_run_is_that_of_report(runs: WrittenRuns, client: TestClient) -> None:
    run = runs.finished()
    page = client.get(f"/runs/{run}").text
    report = build_page(load_records(runs.store, [run], activity=True))
    assert report.body in page and figures_of(page) == report.drawings
    assert "data-live" not in page and "live.js" not in page
    assert client.get("/runs/last").text == page


def test_pages_load_nothing_from_elsewhere_and_have_no_script_of_their_own(
    runs: WrittenRuns, client: TestClient
) -> None:
    run = runs.finished()
    for address in ("/", f"/runs/{run}", compared(run, runs.finished("moon"))):
        answer = client.get(address)
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="([^"]*)"', answer.text)
        for path in loaded:
            assert path == "data:," or client.get(path).status_code == 200
        assert all(path.startswith("/assets/") for path in loaded if path != "data:,")
        assert not re.search(r"<script>|<script type=\"text/javascript\"| on\w+=", answer.text)
        assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert client.get("/assets/plotly.js").text.startswith("/**\n* plotly.js")


def test_a_page_is_built_again_only_when_its_run_has_changed(
    runs: WrittenRuns, client: TestClient, built: Counter[str]
) -> None:
    done = runs.finished()
    first = client.get(f"/runs/{done}")
    with runs.running() as running:
        runs.finish_round(running, 1)
        assert client.get(f"/runs/{done}").text == first.text and built[done] == 1
        same = client.get(f"/runs/{done}", headers={"If-None-Match": first.headers["etag"]})
        assert same.status_code == 304 and not same.content
        etags = []
        for number in (2, 3):
            runs.finish_round(running, number)
            etags += [client.get(f"/runs/{running}").headers["etag"] for _ in range(2)]
        assert built[running] == 2
        assert etags[0] == etags[1] != etags[2] == etags[3]
    assert 'class="status">killed' in client.get(f"/runs/{running}").text  # only its lock has changed
    runs.store.set_status(done, "done", ["a note at the end"])
    assert "a note at the end" in client.get(f"/runs/{done}").text


def test_a_running_run_tells_what_is_new(runs: WrittenRuns, client: TestClient) -> None:
    with runs.running(rounds=4) as run:
        assert "No round is finished yet" in client.get(f"/runs/{run}").text
        runs.finish_round(run, 1)
        page = client.get(f"/runs/{run}").text
        address = re.search(r'data-live="([^"]+)"', page)[1]
        before = client.get(address)
        assert f'data-version="{before.json()["version"]}"' in page
        assert client.get(address, headers={"If-None-Match": before.headers["etag"]}).status_code == 304
        runs.finish_round(run, 2)
        news = client.get(address).json()
        assert news["version"] != before.json()["version"] and news["statuses"] == "running"
        assert "round 2 of 4" in news["progress"] and '<progress value="0.5000">' in news["progress"]
        assert news["figures"]["figure-1"]["data"][0]["y"] == [0.1, 0.2]
        assert "2 of 4 rounds are finished" in news["summary"] and "resume with" not in news["summary"]
        # The script puts these figures into the elements of the page that have their ids.
        whole = client.get(f"/runs/{run}").text
        assert {name: figure for name, figure in figures_of(whole).items() if name in news["figures"]} == news[
            "figures"
        ]
        assert f'<div id="summary">\n{news["summary"]}\n</div>' in whole
        runs.finish(run)
    assert client.get(address).json()["statuses"] == "done"


def test_the_progress_of_a_run_with_a_budget(runs: WrittenRuns, client: TestClient) -> None:
    with runs.running(rounds=100, stop={"simulated_seconds": 8}) as run:
        runs.finish_round(run, 1)
        assert "round 1, 25% of a limit is used" in client.get(f"/runs/{run}").text
        assert '<progress value="0.2500">' in client.get("/rows").text


def test_ticked_runs_are_compared(runs: WrittenRuns, client: TestClient) -> None:
    first, second = runs.finished("fedavg"), runs.finished("moon")
    page = client.get(compared(first, second)).text
    assert "<h1>2 runs: fedavg, moon on digits</h1>" in page and page.count("data-group=") == 2
    with runs.running("fedprox") as third:
        runs.finish_round(third, 1)
        page = client.get(compared(first, third)).text
        assert "1 of 2 runs" in page and 'data-live="/live?' in page
        assert set(client.get(compared(first, third, path="/live")).json()["figures"]) <= set(figures_of(page))


@pytest.mark.parametrize(
    "address",
    [
        "/runs/nothing", "/compare", "/compare?run=nothing", "/live?run=nothing", "/assets/site.py",
        "/assets/..%2Fsite.py", "/runs/..%2F..%2Fetc%2Fpasswd", "/runs/%2Fetc%2Fpasswd", "/assets/../../pyproject.toml",
        "/runs/<script>alert(1)</script>", "/runs/a/b", "/nowhere",
    ],
)  # fmt: skip
def test_only_runs_of_the_folder_are_served(runs: WrittenRuns, client: TestClient, address: str) -> None:
    (runs.folder.parent / "secret").write_text("secret")
    runs.finished()
    answer = client.get(address)
    assert answer.status_code == 404 and "<h1>This page cannot be shown</h1>" in answer.text
    assert "<script>alert" not in answer.text


def test_names_are_escaped(runs: WrittenRuns, client: TestClient) -> None:
    run = runs.finished('<img src=x onerror="alert(1)">')
    pages = [client.get(address).text for address in ("/", f"/runs/{ids(client.get('/').text)[0]}", "/runs/last")]
    for page in (*pages, client.get("/live?run=last").json()["summary"]):
        assert "&lt;img" in page and "<img" not in page and run not in page


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:8765", "192.168.1.7:8765", "box"]
)
def test_requests_that_name_this_machine_are_answered(runs: WrittenRuns, host: str) -> None:
    runs.finished()
    answer = TestClient(build_app(runs.folder, "box")).get("/", headers={"Host": host, "Origin": "http://evil.example"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]  # so no other site can read it
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil", "", "[", "a@b"]
)
def test_requests_that_name_another_machine_are_refused(runs: WrittenRuns, client: TestClient, host: str) -> None:
    runs.finished()
    for address in ("/", "/rows", "/runs/last", "/live?run=last", "/assets/page.js"):
        answer = client.get(address, headers={"Host": host})
        assert answer.status_code == 403 and "not a name of this machine" in answer.text


def test_reading_and_writing_do_not_wait_for_each_other(runs: WrittenRuns, client: TestClient) -> None:
    done = runs.finished()
    with runs.store.transaction() as connection:
        connection.execute("UPDATE runs SET status='failed' WHERE id=?", (done,))
        assert cell(client.get("/").text, done, "state") == "done"
        assert client.get(f"/runs/{done}").status_code == 200
    assert cell(client.get("/").text, done, "state") == "failed"


def test_a_run_that_cannot_be_read_is_one_row_with_the_reason(runs: WrittenRuns, client: TestClient) -> None:
    run, other = runs.finished("moon"), runs.finished()
    for change, words in (("format=999", "newer version"), ("format=NULL, experiment='{'", "damaged row in the store")):
        with runs.store.transaction() as connection:
            connection.execute(f"UPDATE runs SET {change} WHERE id=?", (run,))
        page = client.get("/").text
        assert cell(page, other, "state") == "done" and f'name="run" value="{run}"' not in page  # it cannot be ticked
        row = next(row for row in re.findall(r"<tr\b.*?</tr>", page, re.S) if f"/runs/{run}" in row)
        assert "moon" in row and "unreadable</span>" in row and words in row
        answer = client.get(f"/runs/{run}")
        assert answer.status_code == 404 and words in answer.text


def test_the_metric_of_the_task_is_the_title_of_its_column(runs: WrittenRuns, client: TestClient) -> None:
    one = runs.begin(metric="r2")
    runs.store.finish_run(one, {"rounds": 2, "metrics": {"r2": 0.5}}, [])
    page = client.get("/").text
    assert '<button type="button" class="sort">r2</button>' in page and cell(page, one, "r2") == "0.5000"
    assert "accuracy" not in page
    other = runs.finished()
    page = client.get("/").text
    assert [cell(page, run, "metric") for run in (one, other)] == ["r2 0.5000", "accuracy 0.2000"]


def test_the_runs_of_a_sweep_are_together_below_a_row_about_it(runs: WrittenRuns, client: TestClient) -> None:
    first, alone, second = runs.finished("fedavg"), runs.finished(), runs.begin("moon")
    for run, variant in ((first, "slow"), (second, "fast")):
        runs.store.add_to_sweep(run, "a&b", variant)
    page = client.get("/").text
    assert ids(page) == [second, first, alone]  # at the place of the newest
    assert "sweep a&amp;b</button>" in page and "2 runs: 1 killed, 1 done" in page
    assert page.index('class="sweep" data-sweep="a&amp;b"') < page.index(f"/runs/{second}")
    compared_page = client.get(compared(first, second)).text
    assert "slow" in compared_page and "fast" in compared_page
    assert "slow" not in client.get(compared(first, alone)).text


def test_the_page_of_an_old_run() -> None:
    folder = Path(__file__).parents[1] / "runs" / "old_runs"
    client = TestClient(build_app(folder), base_url="http://127.0.0.1")
    found = ids(client.get("/").text)
    assert len(found) == 6
    assert "fedbuff on digits" in client.get(f"/runs/{next(run for run in found if 'fedbuff' in run)}").text
