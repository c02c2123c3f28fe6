"""Problems made from the operators of the installed torch: crawled, composed, rendered.

Nothing is filtered or written yet; no command calls it.
"""
