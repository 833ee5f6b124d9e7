"""Puts the pieces together and starts processes: jobs, the rq worker on anyio, coordinator, command line."""
