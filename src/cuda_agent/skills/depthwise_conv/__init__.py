"""Depthwise convolutions with what follows them elementwise."""
