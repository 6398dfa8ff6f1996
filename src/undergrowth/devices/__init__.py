"""What devices can do, and what a piece of work costs them in seconds, joules and bytes of memory."""

from undergrowth.devices.availability import Availability, Failures, build_availability
from undergrowth.devices.fleet import Fleet, build_fleet, describe, names
from undergrowth.devices.link_profile import FREE, LinkProfile, find_link, shipped_links
from undergrowth.devices.price import Price, Work, price_work
from undergrowth.devices.profile import Profile, find_profile, read_profile, shipped_profiles
from undergrowth.devices.work import Tracer

__all__ = [
    "FREE", "Availability", "Failures", "Fleet", "LinkProfile", "Price", "Profile", "Tracer", "Work",
    "build_availability", "build_fleet", "describe", "find_link", "find_profile", "names", "price_work", "read_profile",
    "shipped_links", "shipped_profiles",
]  # fmt: skip
