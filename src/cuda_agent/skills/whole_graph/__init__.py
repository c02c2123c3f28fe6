"""Choices that concern a whole module rather than one region: the plan's "graph" part."""
