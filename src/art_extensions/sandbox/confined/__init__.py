"""What runs inside a limited process. Standard library alone: no other part of ART is imported there.

The process is `python -I -S` with an empty environment; these modules are its whole path at first.
"""
