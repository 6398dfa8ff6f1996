"""CSV and Parquet files: columns and their roles, cells without a value, the split, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.data import load
from undergrowth.data.loaders import table_file
from undergrowth.runs.config import parse_experiment

ROWS = [(place / 4, place % 7, "walk" if place % 2 else "sit", f"user-{place % 5}") for place in range(40)]
TEXT = "speed,turn,activity,user\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in ROWS)


def write(folder: Path, text: str = TEXT, name: str = "measured.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_columns_become_features_labels_and_groups(tmp_path):
    data = load(write(tmp_path), label="activity", group="user", standardise=False)
    assert data.name == "measured" and data.classes == 2 and data.class_names == ("sit", "walk")
    assert data.x.shape == (32, 2) and data.test_x.shape == (8, 2) and data.notes == ()
    known = {(np.float32(a), np.float32(b)): (c, d) for a, b, c, d in ROWS}
    for x, y, user in zip(data.x, data.y, data.fields["user"], strict=True):
        assert known[x[0], x[1]] == (data.class_names[y], user)


def test_features_are_standardised_with_the_training_rows(tmp_path):
    raw = load(write(tmp_path), label="activity", ignore="user", standardise=False)
    data = load(write(tmp_path), label="activity", ignore=["user"])
    mean, deviation = raw.x.astype(np.float64).mean(0), raw.x.astype(np.float64).std(0)
    np.testing.assert_allclose(data.x, (raw.x - mean) / deviation, atol=1e-6)
    np.testing.assert_allclose(data.test_x, (raw.test_x - mean) / deviation, atol=1e-6)


def test_a_constant_column_becomes_zero(tmp_path):
    assert not load(write(tmp_path, "a,b,label\n" + "5,1,x\n5,2,y\n" * 9)).x[:, 0].any()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_quotes_compression_and_a_byte_order_mark(tmp_path, separator):
    path = tmp_path / "measured.csv.gz"
    text = TEXT.replace(",", separator).replace("walk", f'"walk{separator} run"')
    path.write_bytes(gzip.compress(("\ufeff" + text).encode()))
    data = load(str(path), label="activity", group="user")
    assert data.class_names == ("sit", f"walk{separator} run") and len(data) == 32


def test_a_file_without_a_header_numbers_its_columns(tmp_path):
    data = load(write(tmp_path, TEXT.partition("\n")[2]), label=3, group=4)
    assert len(data) == 32 and "has no header: its columns are called 1 to 4" in data.notes[0]


@pytest.mark.parametrize(
    ("header", "chosen"), [("a,b,c", "c"), ("target,a,b", "target"), ("a,Label,b", "Label"), ("a,b,user", "b")]
)
def test_the_label_that_is_not_named_is_noted(tmp_path, header, chosen):
    text = header + "\n" + "1,0,1\n0,1,0\n" * 8
    data = load(write(tmp_path, text), group="user" if "user" in header else None)
    assert data.notes == (f"the label is column '{chosen}' of measured.csv; data.label names another",)


def test_a_column_without_a_name_is_left_out_with_a_note(tmp_path):
    data = load(write(tmp_path, ",a,label\n" + "1,2,x\n2,3,y\n" * 6))
    assert data.shape == (1,) and "column 1 of measured.csv has no name and is left out" in data.notes


def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path):
    data = load(write(tmp_path, "a,label\n" + "1,10\n2,9.0\n3,9\n" * 5))
    assert data.class_names == ("9", "10") and data.classes == 2


HOLES = "a,b,label\n" + "1,2,x\n3,?,y\n5,4,x\n,6,y\n7,8,x\n9,9,y\n" * 4


def test_cells_without_a_value_are_refused_dropped_or_filled(tmp_path):
    path = write(tmp_path, HOLES)
    with pytest.raises(InputError, match=r"row 3, column 'b' has no value; .* data\.missing to drop .* or mean"):
        load(path)
    dropped = load(path, missing="drop")
    assert len(dropped) + len(dropped.test_y) == 16 and any("8 of 24 rows" in note for note in dropped.notes)
    filled = load(path, missing="mean", standardise=False)
    assert len(filled) + len(filled.test_y) == 24 and any("8 cells" in note for note in filled.notes)
    values = filled.x[:, 0].astype(np.float64)
    known = np.isin(values, (1, 3, 5, 7, 9))
    np.testing.assert_allclose(values[~known], values[known].mean(), rtol=1e-6)


def test_the_test_set_may_be_whole_groups(tmp_path):
    data = load(write(tmp_path), label="activity", group="user", test_by="group", test_share=0.4, standardise=False)
    users = {(np.float32(a), np.float32(b)): user for a, b, _, user in ROWS}
    tested = {users[x[0], x[1]] for x in data.test_x}
    assert len(tested) == 2 and not tested & set(data.fields["user"])


REFUSED = {
    "text": ("a,city,label\n1,Rome,x\n", {}, "row 2, column 'city': 'Rome' is not a finite number; name the column in"),
    "text later": ("a,label\n" + "1,x\n" * 1500 + "b,y\n", {}, "row 1502, column 'a': 'b' is not a finite number"),
    "infinite": ("a,label\n1,x\ninf,y\n", {}, "row 3, column 'a': 'inf' is not a finite number"),
    "huge": (
        "a,label\n1,x\n2,x\n3,y\n1e308,y\n1e308,x\n",
        {"test_share": 0.2},
        "column 'a' has numbers that are too large",
    ),
    "comma": ("a;label\n1;x\n1,5;y\n", {}, "row 3, column 'a': '1,5' is not a finite number; write numbers with"),
    "ragged": ("a,b,label\n1,2,x\n1,2\n", {}, "row 3 has 2 cells; it must have 3"),
    "empty": ("", {}, "it is empty"),
    "header only": ("a,label\n", {}, "it has no rows below its header"),
    "one row": ("a,label\n1,x\n", {}, "it has 1 rows; at least 2 are needed"),
    "twice": ("a,a,label\n1,2,x\n", {}, "two columns are called 'a'"),
    "label": (TEXT, {"label": "activty"}, "label: there is no column 'activty'; did you mean 'activity'"),
    "group": (TEXT, {"group": "User"}, "group: there is no column 'User'; did you mean 'user'"),
    "no feature": ("a,label\n1,x\n", {"ignore": "a"}, "it has no column for features"),
    "no label": ("a,label\n1,x\n2,\n", {"missing": "mean"}, "row 3, column 'label' has no value"),
    "identifiers": ("a,id\n" + "".join(f"1,k{n}\n" for n in range(30)), {}, "has 30 different values in 30 rows"),
    "no class": ("a,label\n1,0.5\n2,1\n", {}, "row 2, column 'label': '0.5' is not a class"),
    "missing": (TEXT, {"missing": "zero"}, "missing is 'zero'; it must be refuse, drop"),
    "test_by": (TEXT, {"test_by": "user"}, "test_by is 'user'; it must be row or group"),
    "test_by alone": (TEXT, {"test_by": "group"}, "it needs the name of the column in group"),
    "test_share": (TEXT, {"label": "activity", "ignore": "user", "test_share": 1}, "test_share is 1"),
    "standardise": (TEXT, {"standardise": "yes"}, "standardise is 'yes'; it must be true or false"),
    "header": (TEXT, {"header": 1}, "header is 1; it must be true or false"),
    "all holes": ("a,b,label\n" + "1,,x\n2,,y\n" * 4, {"missing": "mean"}, "column 'b' has no value in any training"),
    "all dropped": ("a,b,label\n" + "1,,x\n2,,y\n" * 4, {"missing": "drop"}, "no row has a value in every column"),
}


@pytest.mark.parametrize(("text", "options", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_told_by_row_and_column(tmp_path, text, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        load(write(tmp_path, text), **options)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_not_text(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv': there is no such file"):
        load("nowhere.csv")
    with pytest.raises(InputError, match="is itself a path"):
        load(write(tmp_path), tmp_path)
    (tmp_path / "odd.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="it is not UTF-8 text"):
        load(str(tmp_path / "odd.csv"))
    (tmp_path / "odd.csv.gz").write_bytes(gzip.compress(TEXT.encode())[:60])
    with pytest.raises(InputError, match="cannot be read as CSV"):
        load(str(tmp_path / "odd.csv.gz"), label="activity")


def test_chunks_do_not_change_the_table(tmp_path, monkeypatch):
    whole = load(write(tmp_path), label="activity", group="user")
    monkeypatch.setattr(table_file, "ROWS_PER_CHUNK", 7)
    parts = load(write(tmp_path), label="activity", group="user")
    assert np.array_equal(whole.x, parts.x) and np.array_equal(whole.y, parts.y)


def test_a_group_column_is_the_partition_by_default(tmp_path):
    path = write(tmp_path)
    settings = {"label": "activity", "group": "user"}
    assert parse_experiment({"data": {"name": path, **settings}}).data.partition == "natural"
    assert parse_experiment({"data": {"name": path, "partition": "iid", **settings}}).data.partition == "iid"
    result = ug.run(data=path, data_options=settings, model="logistic", rounds=1, out=tmp_path / "runs")
    assert result.summary["clients"] == 5 and result.data == "measured"


def test_parquet_gives_what_csv_gives(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {name: [row[place] for row in ROWS] for place, name in enumerate(("speed", "turn", "activity", "user"))}
    parquet.write_table(arrow.table(columns), tmp_path / "measured.parquet")
    one = load(str(tmp_path / "measured.parquet"), label="activity", group="user")
    other = load(write(tmp_path), label="activity", group="user")
    assert np.array_equal(one.x, other.x) and np.array_equal(one.fields["user"], other.fields["user"])
    with pytest.raises(InputError, match="row 1, column 'user': 'user-0' is not a finite number"):
        load(str(tmp_path / "measured.parquet"), label="activity")
    columns["speed"][3] = None
    parquet.write_table(arrow.table(columns), tmp_path / "measured.parquet")
    with pytest.raises(InputError, match="row 4, column 'speed' has no value"):
        load(str(tmp_path / "measured.parquet"), label="activity", group="user")


def test_parquet_without_pyarrow_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'undergrowth\[parquet\]'"):
        load(write(tmp_path, "", "measured.parquet"))
