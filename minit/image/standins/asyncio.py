"""Stands in for asyncio, which structlog imports for its asynchronous methods: PID 1 runs trio."""
