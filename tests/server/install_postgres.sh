#!/bin/sh
# Installs the database of the tests, Debian's Postgres, where apt-get and the rights to use it are there. No server of it is
# started: the tests make their own. Says in one line what it did. Never fails: without it those tests are skipped, and say so.
found() {
    for name in /usr/lib/postgresql/*/bin/initdb "$(command -v initdb 2>/dev/null)"; do
        [ -x "$name" ] && echo "$name" && return 0
    done
    return 1
}
if found >/dev/null; then
    echo "database of the tests: $(found)"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "database of the tests: none, and no apt-get to install one; install PostgreSQL yourself"
    exit 0
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
# Without the cluster that Debian's package makes and starts.
if { $sudo apt-get update -qq && $sudo apt-get install -qq -y --no-install-recommends postgresql-common &&
    echo "create_main_cluster = false" | $sudo tee -a /etc/postgresql-common/createcluster.conf &&
    $sudo apt-get install -qq -y --no-install-recommends postgresql; } >/dev/null 2>&1 && found >/dev/null; then
    echo "database of the tests: $(found), installed now"
else
    echo "database of the tests: none, apt-get could not install postgresql; install it yourself"
fi
