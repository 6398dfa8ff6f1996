"""What devices can do, and what a piece of work costs them in seconds, joules and bytes of memory."""

from undergrowth.devices.availability import Availability, Failures, availability
from undergrowth.devices.fleet import Fleet, describe, fleet, names
from undergrowth.devices.price import Price, price
from undergrowth.devices.profile import Profile, read_profile
from undergrowth.devices.profiles import PROFILES, profile
from undergrowth.devices.work import Tracer, Work

__all__ = [
    "PROFILES",
    "Availability",
    "Failures",
    "Fleet",
    "Price",
    "Profile",
    "Tracer",
    "Work",
    "availability",
    "describe",
    "fleet",
    "names",
    "price",
    "profile",
    "read_profile",
]
