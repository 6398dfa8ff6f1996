"""The documentation is true: its code runs, its experiments are valid, its commands work, its links lead to a file.

The blocks of one page run in order, in an empty folder, and its Python blocks share their names. An HTML comment above
a block says how to treat it::

    <!-- file: first.yaml -->   save the block under that name for the blocks after it
    <!-- run -->                run the experiment too
    <!-- output -->             compare with what the block before it printed; numbers within 5 %
    <!-- skip: why -->          do not run the block
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import undergrowth as ug
from tests.typed_commands import invoke
from undergrowth.devices import describe as describe_fleet
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.execution import start
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.topologies import preview_topology
from undergrowth.sweeps.grid import expand
from undergrowth.sweeps.planned_sweep import plan_sweep

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    mark: str = ""

    @property
    def file(self) -> str | None:
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def skipped(self) -> bool:
        return self.mark.startswith("skip: ")


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start("text")), found["language"], found["text"], found["mark"] or "")
        for found in BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An empty module. The current folder is empty too, and no data set is found outside of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")  # tables are as wide as the pages show them
    made = ModuleType("documented")
    sys.modules[made.__name__] = made  # dataclasses look up their module
    yield made
    del sys.modules[made.__name__]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_what_a_page_shows_works(page: Path, module: ModuleType) -> None:
    printed = ""
    for block in blocks(page):
        place = f"{name(page)}, line {block.line}"
        if block.skipped:
            assert len(block.mark) > len("skip: ") + 10, f"{place}: say why it is skipped"
            continue
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            printed = run_python(block, place, module)
        elif block.language == "yaml":
            check_yaml(block, place)
        elif block.language in ("bash", "console"):
            printed = run_commands(block, place)
        elif block.mark == "output":
            assert same(printed, block.text), f"{place}: the block before it prints\n{printed}"
        else:
            assert block.language in ("text", "mermaid", "csv"), f"{place}: no rule says how to check this block"


def run_python(block: Block, place: str, module: ModuleType) -> str:
    printed = io.StringIO()
    # Empty lines first, so that a traceback shows the line of the page.
    code = compile("\n" * block.line + block.text, place, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, vars(module))
    return printed.getvalue()


def check_yaml(block: Block, place: str) -> None:
    raw = yaml.safe_load(block.text)
    if set(raw) == {"devices"}:
        fleet = Path("a-fleet-of-the-page.yaml")
        fleet.write_text(block.text, encoding="utf-8")
        assert describe_fleet(fleet), place
        return
    if set(raw) <= {"nodes", "tree"}:
        topology = Path("a-topology-of-the-page.yaml")
        topology.write_text(block.text, encoding="utf-8")
        assert preview_topology(str(topology), {}), place
        return
    assert set(raw) <= {*Experiment.model_fields, "sweep"}, f"{place}: neither an experiment nor a file for one"
    if sum(len(variant.raws) for variant in expand(raw)) > 1:
        plan_sweep(raw)  # checks every variant
        return
    settings = parse_experiment(raw)
    settings.train_settings()
    if block.mark == "run":
        start(raw)
    elif settings.data.name == "digits":
        federate(settings)  # also checks what the method, the model and the fleet require


def run_commands(block: Block, place: str) -> str:
    printed = ""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["undergrowth"]:
            done = invoke(*words[1:])
            assert done.exit_code == 0, f"{place}: {line}\n{done.output}"
            printed += done.stdout
    return printed


def same(printed: str, written: str) -> bool:
    """Whether the words are the same and the numbers within 5 %, because another machine rounds differently."""
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", written).split():
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(written), strict=True)
    return all(math.isclose(number(one), number(other), rel_tol=0.05, abs_tol=0.01) for one, other in pairs)


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [(one or other).partition("#")[::2] for one, other in LINK.findall(prose(page))]
    local = [(page.parent / link if link else page, part) for link, part in links if not re.match(r"\w+:", link)]
    assert [target for target, _ in local if not target.exists()] == []
    named = [(target, part) for target, part in local if part and target.suffix == ".md"]
    assert [(target, part) for target, part in named if part not in anchors(target)] == []


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_names_all_methods_data_sets_models_and_fleets() -> None:
    from undergrowth import data, devices, models

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [*METHODS, *data.names(), *models.names(), *devices.names()]
    assert [each for each in names if f"`{each}`" not in text] == []


def test_the_guide_names_every_key_of_an_experiment() -> None:
    text = (ROOT / "docs/guides/experiments.md").read_text(encoding="utf-8")
    keys = [*Experiment.model_fields]
    for field in Experiment.model_fields.values():
        keys += getattr(field.annotation, "model_fields", {})
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_index_of_decisions_has_every_page_by_its_number_and_title() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    lines = ["{}. [{}]({})".format(*title.split(". ", 1), page.name) for page, title in zip(pages, titles, strict=True)]
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in index if line[:1].isdigit()] == lines
    assert [int(page.name[:4]) for page in pages] == [int(line.partition(".")[0]) for line in lines]


MODULES = sorted({method.__module__ for method in METHODS.values()})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.rpartition(".")[2])
def test_the_example_of_a_method_runs(path: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is written, but on fewer samples and rounds: that an example runs is the claim, not what it learns."""

    def short(rounds: int = 2, **arguments: Any) -> ug.Result:
        return complete(rounds=min(rounds, 2), data_options={"train_samples": 200}, **arguments)

    complete = ug.run
    monkeypatch.setattr(ug, "run", short)
    text = inspect.cleandoc(sys.modules[path].__doc__ or "")
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    names: dict[str, Any] = vars(module)
    for example in examples:
        exec(compile(example.source, path, "exec"), names)
    assert 0 <= names["result"].accuracy <= 1
