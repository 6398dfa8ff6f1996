"""`undergrowth fleets`: the fleets of simulated devices."""

from __future__ import annotations

from typing import Any

from undergrowth.cli.output import AsJson, EntryName, console, print_json, print_rows


def fleets(name: EntryName = None, json: AsJson = False) -> None:
    """List the fleets. With NAME or a fleet file: its device classes with speed, memory, network and power.

    Examples:

      undergrowth fleets mixed-edge

      undergrowth run --fleet mixed-edge --deadline 60
    """
    from undergrowth.devices import describe, names

    if name is None:
        fleet_rows = {each: describe(each) for each in names()}
        listed = [{"fleet": each, "devices": rows} for each, rows in fleet_rows.items()]
        shown = [
            (each, ", ".join(f"{_number(row)} {row['device']}" for row in rows)) for each, rows in fleet_rows.items()
        ]
        print_rows(listed, json, ("fleet", "devices"), shown)
        return
    rows: list[dict[str, Any]] = describe(name)
    if json:
        print_json({"fleet": name, "devices": rows})
        return
    _print_fleet(name, rows)


def _print_fleet(name: str, rows: list[dict[str, Any]]) -> None:
    from undergrowth.report.tables import duration, energy, facts, size, stackable_table

    columns = (
        "device", "number", "spread", "GFLOP/s", "usable", "memory", "runtime", "MB/s down", "MB/s up", "latency",
        "watts", "radio", "battery",
    )  # fmt: skip
    shown = [
        (
            row["device"], _number(row), f"{row['spread']:g}", f"{row['flops'] / 1e9:.4g}",
            f"{row['achieved_flops'] / 1e9:.3g}", size(row["memory_bytes"]), size(row["runtime_bytes"]),
            f"{row['down'] / 1e6:.3g}",
            f"{row['up'] / 1e6:.3g}", duration(row["latency"]), f"{row['compute_watts']:g}", f"{row['radio_watts']:g}",
            "mains" if row["battery"] is None else energy(row["battery"]),
        )
        for row in rows
    ]  # fmt: skip
    screen = console()
    screen.print(f"fleet {name}")
    stacked = ((0,), (1, 2), (3, 4), (5, 6), (7, 8), (9, 12), (10, 11))
    screen.print(stackable_table(columns, shown, stacked, right=range(1, len(columns))))
    screen.print(facts([(row["device"], row["source"]) for row in rows]))
    screen.print(f"\nexample: undergrowth run --fleet {name} --deadline 60")


def _number(row: dict[str, Any]) -> str:
    """Number of devices in a row of a fleet: a percentage, or a fixed count."""
    return f"{row['share']:.0%}" if row["share"] is not None else f"{row['count']} ×"
