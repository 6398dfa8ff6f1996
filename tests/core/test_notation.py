"""Settings written as a name and numbers."""

from __future__ import annotations

import pytest

from undergrowth.core import InputError
from undergrowth.core.notation import Form, Number, parse, parse_with_word

FORMS = {
    "plain": Form(),
    "entropy": Form((Number("FRACTION", above=0, at_most=1), Number("T", above=0, default=0.1)), "entropy:0.5"),
    "few": Form((Number("N", at_least=1, whole=True),)),
    "trace": Form(example="trace:phones.csv", rest="FILE"),
    "natural": Form(example="natural:writer", rest="FIELD", rest_optional=True),
}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("plain", ("plain", [])),
        ("entropy:0.5", ("entropy", [0.5, 0.1])),
        (" entropy : 1 : 2", ("entropy", [1.0, 2.0])),
        ("few:3", ("few", [3])),
    ],
)
def test_names_and_numbers(text: str, parsed: tuple[str, list[float]]) -> None:
    assert parse("train.selector", text, FORMS) == parsed


@pytest.mark.parametrize(
    ("text", "rest"), [("trace: C:/a b.csv ", "C:/a b.csv"), ("natural", ""), ("natural:role", "role"), ("plain", "")]
)
def test_a_text_after_the_name(text: str, rest: str) -> None:
    assert parse_with_word("train.selector", text, FORMS) == (text.partition(":")[0], [], rest)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("entrop:1", "train.selector 'entrop:1' is not known; did you mean 'entropy'?"),
        ("plain:1", "train.selector 'plain:1' must be plain"),
        ("plain:", "train.selector 'plain:' must be plain"),
        (
            "entropy:2",
            "train.selector 'entropy:2' must be entropy:FRACTION[:T] with FRACTION a finite number above 0 and of at "
            "most 1, T a finite number above 0, such as entropy:0.5",
        ),
        ("entropy", "must be entropy:FRACTION"),
        ("entropy:nan", "must be entropy:FRACTION"),
        ("entropy:1:inf", "must be entropy:FRACTION"),
        ("few:1.5", "must be few:N with N a whole number of at least 1"),
        ("few:1:2", "must be few:N"),
        ("trace", "train.selector 'trace' must be trace:FILE, such as trace:phones.csv"),
        ("trace: ", "must be trace:FILE"),
        ("natural:", "must be natural[:FIELD], such as natural:writer"),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        parse("train.selector", text, FORMS)
    assert sentence in str(error.value)


def test_something_else_than_a_text() -> None:
    with pytest.raises(InputError, match=r"train\.selector is 3 and must be a text such as 'entropy:0\.5'"):
        parse("train.selector", 3, FORMS)  # type: ignore[arg-type]
