"""The runs of a folder in a browser, live while they run. Needs the extra `serve`."""

from undergrowth.serve.server import serve_runs

__all__ = ["serve_runs"]
