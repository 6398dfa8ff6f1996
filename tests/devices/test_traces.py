"""Traces: reading a file, querying it, and what is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import InputError
from undergrowth.devices.availability import build_availability
from undergrowth.devices.traces import Trace, read_trace

DEVICES = ["phone", "watch", "camera"]


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "trace.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_a_trace_has_the_windows_of_its_file(written):
    path = written("device,on,off\nwatch,50,60.5\nphone,10,20\n\nphone,100,\nwatch,5,15\n")
    found = build_availability(f"trace:{path}", DEVICES, 0)
    expected = {0: (0, 0), 5: (0, 1), 10: (1, 1), 15: (1, 0), 20: (0, 0), 60: (0, 1), 60.5: (0, 0), 1e9: (1, 0)}
    for time, (phone, watch) in expected.items():
        assert found.on(time).tolist() == [bool(phone), bool(watch), False], time
    assert [found.until("phone", time) for time in (10, 19, 100)] == [20, 20, math.inf]
    assert [found.until("watch", time) for time in (3, 15, 55, 70)] == [3, 15, 60.5, 70]
    assert found.until("camera", 12.0) == 12.0
    assert [found.next_on(time, DEVICES) for time in (0, 7, 20, 55, 61, 1e9)] == [5, 7, 50, 55, 100, 1e9]


def test_no_device_is_on_after_the_last_window(written):
    found = read_trace(written("device,on,off\nphone,0,10\n"), DEVICES)
    assert found.next_on(10.0, DEVICES) == math.inf
    assert not found.on(math.inf).any()


def test_a_window_may_end_when_another_opens(written):
    found = read_trace(written("device,on,off\nphone,0,10\nwatch,10,20\n"), DEVICES)
    assert found.on(10.0).tolist() == [False, True, False]
    assert found.next_on(10.0, DEVICES) == 10.0


def test_adjacent_windows_are_merged(written):
    found = read_trace(written("device,on,off\nphone,10,20\nphone,0,10\nphone,20,inf\nwatch,20,30\n"), DEVICES)
    assert found.until("phone", 0.0) == math.inf
    assert found.on(10.0)[0] and found.on(20.0)[0]
    assert found.until("watch", 20.0) == 30.0


def test_files_of_spreadsheet_programs_are_read(written):
    text = "\ufeffnote, off ,device,on\r\nat home,20,phone, 1e1\r\n,Infinity,watch,0\r\n"
    found = read_trace(written(text), DEVICES)
    assert found.until("phone", 10.0) == 20.0
    assert found.until("watch", 10.0) == math.inf


@given(st.lists(st.lists(st.integers(0, 40), max_size=12, unique=True), min_size=1, max_size=4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_queries_agree_with_a_search_of_all_windows(edges, for_good):
    """Against a reference that goes through all windows, with many more changes than devices."""
    windows = []
    for owner, times in enumerate(sorted(row) for row in edges):
        closes = [*times[1::2], math.inf] if for_good else times[1::2]
        windows += [(owner, float(on), float(off)) for on, off in zip(times[::2], closes, strict=False)]
    names = [f"device-{number}" for number in range(len(edges))]
    table = np.array(windows).reshape(-1, 3)
    found = Trace({name: place for place, name in enumerate(names)}, table[:, 0].astype(int), table[:, 1], table[:, 2])
    moments = [step / 2 for step in range(90)]
    states = []
    for time in moments:
        open_now = {owner: off for owner, on, off in windows if on <= time < off}
        states.append([place in open_now for place in range(len(names))])
        assert found.on(time).tolist() == states[-1]
        assert [found.until(name, time) for name in names] == [open_now.get(p, time) for p in range(len(names))]
    for place, time in enumerate(moments):
        later = (moment for moment, state in zip(moments[place:], states[place:], strict=True) if any(state))
        assert found.next_on(time, names) == next(later, math.inf)


def test_a_long_trace_of_many_devices():
    count, days = 2_000, 5
    owners = np.repeat(np.arange(count), days)
    opens = np.random.default_rng(0).uniform(0, 40_000, len(owners)) + np.tile(np.arange(days) * 86_400.0, count)
    found = Trace({str(place): place for place in range(count)}, owners, opens, opens + 30_000)
    for time in (35_000.0, 200_000.0, 380_000.0):
        assert found.on(time).sum() == ((opens <= time) & (time < opens + 30_000)).sum()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no column 'device'; it is empty and must name the columns 'device,on,off'"),
        ("device,start,off\n", ": no column 'on'; its first line is 'device,start,off' and must name"),
        ("device,on,off,on\nphone,0,10,20\n", ": its first line has the column 'on' twice; keep one of them"),
        ("phone,0,10\n", ": no column 'device'; its first line is 'phone,0,10'"),
        ("device,on,off\n\n", " has no windows; give at least one row"),
        ("device,on,off\nfone,0,1\n", " line 2: unknown device 'fone'; did you mean 'phone'?"),
        ("device,on,off\nphone,0,1\nzzzzzz,0,1\n", " line 3: unknown device 'zzzzzz'; choose one of: camera, phone"),
        ("device,on,off\nphone,-1,1\n", " line 2: on is '-1' and must be a number of seconds of at least 0"),
        ("device,on,off\nphone,nan,1\n", " line 2: on is 'nan' and must be"),
        ("device,on,off\nphone,inf,\n", " line 2: on is 'inf' and must be"),
        ("device,on,off\nphone,,1\n", " line 2: on is '' and must be"),
        ("device,on,off\nphone,noon,1\n", " line 2: on is 'noon' and must be"),
        ("device,on,off\n\nphone,5,4\n", " line 3: off is '4' and must be a number of seconds above on (5), or empty"),
        ("device,on,off\nphone,5,5\n", " line 2: off is '5' and must be"),
        ("device,on,off\nphone,5,nan\n", " line 2: off is 'nan' and must be"),
        ("device,on,off\nphone,5,-inf\n", " line 2: off is '-inf' and must be"),
        ("device,on,off\nphone,5,late\n", " line 2: off is 'late' and must be"),
        ("device,on,off\nphone,5\n", " line 2: 'phone,5' has 2 values and must have 3"),
        ("device,on,off\nphone,0,5,7\n", " line 2: 'phone,0,5,7' has 4 values and must have 3"),
        (
            "device,on,off\nphone,8,12\nwatch,0,99\nphone,0,10\n",
            " lines 2 and 4: the windows 0-10 and 8-12 of device 'phone' overlap; a window must open at or after",
        ),
        (
            "device,on,off\nphone,0,\nphone,1700000001,\n",
            " lines 2 and 3: the windows 0-inf and 1700000001-inf of device 'phone' overlap",
        ),
        ("device,on,off\nphone,0,9\nphone,0,9\n", " lines 2 and 3: the windows 0-9 and 0-9 of device 'phone' overlap"),
        (b"device,on,off\n\xff\xfe,0,1\n", " cannot be read as a CSV file in UTF-8: "),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(written, text, message):
    path = written(text)
    with pytest.raises(InputError, match="^" + re.escape(f"trace '{path}'{message}")) as raised:
        build_availability(f"trace:{path}", DEVICES, 0)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.csv': there is no such file; give the path"):
        build_availability(f"trace:{tmp_path / 'gone.csv'}", DEVICES, 0)
    with pytest.raises(InputError, match="cannot be read"):
        build_availability(f"trace:{tmp_path}", DEVICES, 0)


def test_a_hint_does_not_list_thousands_of_devices(written):
    path = written("device,on,off\nphone,0,1\n")
    with pytest.raises(InputError, match=r"unknown device 'phone'; the 5000 devices have names such as 'device-0'$"):
        read_trace(path, [f"device-{number}" for number in range(5000)])
