"""The site in a real browser: Chromium, driven by selenium."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from tests.serve.conftest import WrittenRuns
from undergrowth.runs.lock import lock_run
from undergrowth.serve.site import build_app

selenium = pytest.importorskip("selenium", reason="needs selenium: pip install selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SECONDS = 60  # a test only takes this long if what it waits for never happens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium: apt-get install chromium chromium-driver"),
]


@pytest.fixture
def address(runs: WrittenRuns) -> Iterator[str]:
    """The address of a server about the runs."""
    config = uvicorn.Config(build_app(runs.folder), ws="none", lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


class Browser:
    """A window without a screen."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        metrics = {"width": width, "height": height, "pixelRatio": 1}
        if width < 600:  # a window on a desktop cannot be that narrow
            options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
        options.add_argument(f"--window-size={width},{height}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait(self, script: str) -> None:
        """Waits until the expression `script` is true."""
        WebDriverWait(self.driver, SECONDS, poll_frequency=0.1).until(lambda _: self.run(f"return {script}"), script)

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def open_browser() -> Iterator[Callable[..., Browser]]:
    opened: list[Browser] = []

    def start(**size: int) -> Browser:
        opened.append(Browser(**size))
        return opened[-1]

    yield start
    for browser in opened:
        browser.driver.quit()


def shown(browser: Browser) -> list[str]:
    """The methods of the rows that are shown, from top to bottom."""
    return [
        row.find_element(By.CSS_SELECTOR, "[data-title=method]").text for row in browser.all("tbody tr:not([hidden])")
    ]


def test_the_list_is_sorted_filtered_ticked_and_compared(
    runs: WrittenRuns, address: str, open_browser: Callable[..., Browser]
) -> None:
    for method, rounds in (("fedavg", 2), ("moon", 3), ("fedprox", 1)):
        runs.finished(method, rounds=rounds)
    browser = open_browser()
    browser.driver.get(address)
    assert shown(browser) == ["fedprox", "moon", "fedavg"]  # the newest first
    heads = {head.text.split()[0]: head for head in browser.all("th .sort")}
    heads["accuracy"].click()
    assert shown(browser) == ["moon", "fedavg", "fedprox"]
    heads["accuracy"].click()
    assert shown(browser) == ["fedprox", "fedavg", "moon"]
    heads["method"].click()
    assert shown(browser) == ["fedavg", "fedprox", "moon"]
    [filter_box] = browser.all("#filter")
    filter_box.send_keys("digits FED")
    assert shown(browser) == ["fedavg", "fedprox"]
    [button] = browser.all("#compare")
    assert not button.is_enabled()
    browser.all("#every")[0].click()
    assert button.text == "Compare 2 runs"

    fourth = runs.finished("fedadam")  # appears by itself; order, filter and ticks stay
    browser.wait(f"document.body.textContent.includes('{fourth}')")
    assert shown(browser) == ["fedadam", "fedavg", "fedprox"] and button.text == "Compare 2 runs"
    button.click()
    browser.wait("document.querySelectorAll('.js-plotly-plot').length > 5")
    assert browser.all("h1")[0].text in ("2 runs: fedavg, fedprox on digits", "2 runs: fedprox, fedavg on digits")
    browser.all(".bar a")[0].click()
    browser.wait("document.querySelector('#runs') !== null")
    assert browser.problems() == []


def test_the_runs_of_a_sweep_are_folded_sorted_and_ticked_together(
    runs: WrittenRuns, address: str, open_browser: Callable[..., Browser]
) -> None:
    for method, rounds in (("fedavg", 2), ("moon", 3)):
        runs.store.add_to_sweep(runs.finished(method, rounds=rounds), "methods", method)
    runs.finished("fedprox")
    browser = open_browser()
    browser.driver.get(address)

    def visible() -> list[str]:
        return [row.text.split(":")[0] for row in browser.all("tbody tr") if row.is_displayed()]

    assert len(visible()) == 2 and visible()[1] == "sweep methods 2 runs"
    browser.all(".fold")[0].click()
    assert len(visible()) == 4
    next(head for head in browser.all("th .sort") if head.text.startswith("accuracy")).click()
    assert [("moon" in row, "fedavg" in row) for row in visible()[1:3]] == [(True, False), (False, True)]
    browser.all("tr.sweep input")[0].click()
    assert browser.all("#compare")[0].text == "Compare 2 runs"
    browser.all(".fold")[0].click()
    [filter_box] = browser.all("#filter")
    filter_box.send_keys("moon")
    assert len(visible()) == 2 and "moon" in visible()[1]  # the row of the sweep and the run
    assert browser.problems() == []


def test_the_page_of_a_running_run_grows(runs: WrittenRuns, address: str, open_browser: Callable[..., Browser]) -> None:
    browser = open_browser()
    run = runs.begin(rounds=5)
    browser.driver.get(f"{address}/runs/{run}")
    assert browser.all(".status")[0].text == "killed"
    with lock_run(runs.folder / run):  # as if it was resumed
        browser.wait("document.querySelector('.status')?.textContent === 'running'")
        assert "No round is finished yet" in browser.all("#summary")[0].text
        points = "document.getElementById('figure-1')?.data?.[0]?.x?.length"
        runs.finish_round(run, 1)
        browser.wait(f"{points} === 1")  # the page was loaded again, with figures
        browser.run("window.stayed = true")
        for number in (2, 3):
            runs.finish_round(run, number)
            browser.wait(f"{points} === {number}")
            browser.wait(f"document.querySelectorAll('#figure-1 .point').length === {number}")
            assert browser.all("#progress")[0].text == f"running: round {number} of 5"
            assert browser.run("return document.querySelector('#progress progress').value") == number / 5
            assert f"0.{number}000" in browser.all(".card .numbers")[0].text
        assert browser.run("return window.stayed")  # without loading the page again
        runs.finish(run)
        browser.wait("window.stayed === undefined && document.body.textContent.includes('phone-mid')")
    assert browser.all("#progress")[0].text == "" and browser.problems() == []


def test_a_comparison_keeps_what_the_reader_has_hidden_and_opened(
    runs: WrittenRuns, address: str, open_browser: Callable[..., Browser]
) -> None:
    done = runs.finished("moon")
    browser = open_browser()
    with runs.running("fedavg") as run:
        runs.finish_round(run, 1)
        browser.driver.get(f"{address}/compare?run={done}&run={run}")
        visible = "document.getElementById('figure-1')?.data?.map((trace) => trace.visible !== false).join()"
        browser.wait(f"{visible} === 'true,true'")
        browser.all(".legend button")[0].click()
        browser.all("details.card summary")[1].click()
        browser.wait(f"{visible} === 'false,true'")
        runs.finish_round(run, 2)
        browser.wait("document.getElementById('figure-1').data[1].x.length === 2")
        assert browser.run(f"return {visible}") == "false,true"
        assert [card.get_attribute("open") for card in browser.all("details.card")] == [None, "true"]
        browser.all(".legend button")[0].click()
        browser.wait(f"{visible} === 'true,true'")
    assert browser.problems() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_in_both_colour_schemes(
    runs: WrittenRuns, address: str, open_browser: Callable[..., Browser], scheme: str
) -> None:
    first = runs.finished("fedprox", options={"mu": 0.5})
    browser = open_browser(width=400, height=800)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for path in ("/", f"/runs/{first}", f"/compare?run={first}&run={runs.finished()}"):
        browser.driver.get(address + path)
        browser.wait("document.querySelectorAll('.figure:not(:has(.js-plotly-plot))').length === 0")
        assert browser.run("return document.documentElement.scrollWidth") <= 400
        back = "rgb(20, 24, 26)" if scheme == "dark" else "rgb(251, 251, 250)"
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == back
    browser.driver.get(address)
    cells = browser.all("tbody tr:first-child td")
    assert all(cell.is_displayed() and cell.rect["x"] + cell.rect["width"] <= 400 for cell in cells)
    assert browser.problems() == []
