"""Environments by name: built-in tasks, those of other libraries, and a user's own, behind one protocol.

environment.py      `NamedEnvironment`, the protocol, and what its adapters have in common
registry.py         `find_environment("gymnasium:my_module:MyEnvironment")`
a file each         one adapter; it imports its library when an environment of it is made
"""
