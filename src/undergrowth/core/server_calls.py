"""Calls of a server's functions, with one sentence about what goes wrong in them.

Servers are often written by users. An exception in one becomes a `RunError` that names the function, the node and the
round; a result of the wrong type is an `InputError`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from undergrowth.core.context import Context
from undergrowth.core.errors import CODE_ERRORS, InputError, RunError, describe_error
from undergrowth.core.packet import Packet
from undergrowth.core.pytree import State
from undergrowth.core.samplers import View
from undergrowth.core.server import InnerServer, Plan, Server
from undergrowth.core.task import Task

MAX_NAMES = 6  # of the names that an error lists


def call_server(server: Server, function: str, *arguments: Any, context: Context | None = None) -> Any:
    """The result of a function of the server. `context`: of the call; by default its last argument."""
    try:
        return getattr(server, function)(*arguments)
    except (InputError, RunError):
        raise
    except CODE_ERRORS as error:
        context = arguments[-1] if context is None else context
        assert context is not None
        where = f"{_name(server)}.{function} failed at '{context.node}' in round {context.round + 1}"
        raise RunError(f"{where}: {describe_error(error)}{_hint(error, arguments)}") from error


def next_state(server: Server, function: str, *arguments: Any) -> State:
    """The state that `init`, `adopt` or `step` returns."""
    state: State = call_server(server, function, *arguments)
    if not isinstance(state, dict):
        raise InputError(
            f"method: {_name(server)}.{function} returned {_type_of(state)}; it must return the server's state, "
            "a dictionary"
        )
    return state


def next_plan(
    server: Server, children: Collection[str], task: Task, state: State, view: View, context: Context
) -> Plan:
    """The plan of a server whose node has these children."""
    plan: Plan = call_server(server, "plan", task, state, view, context)
    if not isinstance(plan, Plan):
        raise InputError(f"method: {_name(server)}.plan returned {_type_of(plan)}; it must return a Plan")
    unknown = plan.packets.keys() - children
    if unknown:
        raise InputError(
            f"method: {_name(server)}.plan asks '{min(unknown)}', which is not a child of '{context.node}'; "
            "`view.idle` has the children that may be asked"
        )
    return plan


def _name(server: Server) -> str:
    """The name of the server's class; at an inner node, of the server that it passes uploads on for."""
    return type(server.root if isinstance(server, InnerServer) else server).__name__


def _type_of(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _hint(error: BaseException, arguments: tuple[Any, ...]) -> str:
    """What there was instead of the key that a KeyError names."""
    if not isinstance(error, KeyError) or not error.args:
        return ""
    key = error.args[0]
    for argument in arguments:
        if isinstance(argument, View) and key in argument.nodes:
            return f"; '{key}' is a node of the topology, and `view.devices` has the children that are devices"
        if isinstance(argument, Packet):
            names = [*argument.tensors, *argument.scalars]
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            return f"; the packet has {', '.join(names[:MAX_NAMES]) or 'no entries'}{more}"
    return ""
