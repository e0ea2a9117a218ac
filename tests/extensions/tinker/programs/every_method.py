"""Runs where the tinker SDK is: calls each public method of its clients at the server of TINKER_BASE_URL.

    python every_method.py [FOLDER OF TORCH]

Prints a JSON line for each method: its name, the outcome ("works", "refused", "fails", "no check") and what
was seen. Then a line for each wrong request, whose outcome is the class of the error.
"""

from __future__ import annotations

import sys
import warnings
from itertools import groupby

warnings.simplefilter("ignore")
sys.path += sys.argv[1:2]  # behind the SDK's own packages

import method_rest  # noqa: E402, F401
import method_sampling  # noqa: E402, F401
import method_service  # noqa: E402, F401
import method_training  # noqa: E402, F401
from method_calls import CHECKS, Clients, public_methods, run_check, tell  # noqa: E402
from method_errors import tell_errors  # noqa: E402


def main() -> None:
    methods = public_methods()
    for method in sorted(CHECKS.keys() - set(methods)):
        tell(method, "gone", "the SDK has no such method")
    for method in methods:
        if method not in CHECKS:
            tell(method, "no check", "a check of this method is missing")
    clients = Clients()
    known = [method for method in CHECKS if method in methods]
    for check, group in groupby(known, key=CHECKS.__getitem__):
        run_check(list(group), check, clients)
    tell_errors(clients)


if __name__ == "__main__":
    main()
