"""Deciding everything about a pod before touching anything: values in, values out, no effects."""
