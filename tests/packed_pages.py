"""Reads what is packed in an HTML page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any


def unpacked(page: str, element: str) -> str:
    """The text that the script of a page unpacks from one of its elements."""
    text = re.search(rf'id="{element}">([^<]*)</script>', page)[1]
    return gzip.decompress(base64.b85decode(text.replace(".", "<"))).decode("utf-8")


def figures_of(page: str) -> dict[str, Any]:
    return json.loads(unpacked(page, "figures"))
