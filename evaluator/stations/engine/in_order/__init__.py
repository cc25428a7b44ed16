"""The engine's program for queues in the order of arrival."""
