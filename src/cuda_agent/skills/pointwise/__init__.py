"""Elementwise regions with broadcasting, as one kernel that runs at the speed of memory."""
