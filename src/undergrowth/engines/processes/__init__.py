"""Worker processes that share memory with the process that runs the server."""
