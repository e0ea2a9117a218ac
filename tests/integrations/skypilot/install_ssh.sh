#!/bin/sh
# Installs what the tests of boxes call, from Debian, where apt-get and the rights to use it are there: rsync, and an
# ssh server, which listens on loopback addresses only, and only while a test runs.
# Says in one line what it did. Never fails: without them those tests fail in `make test`, and elsewhere are skipped.
missing=""
for pair in sshd:openssh-server ssh:openssh-client rsync:rsync; do
    if ! PATH="$PATH:/usr/sbin" command -v "${pair%%:*}" >/dev/null 2>&1; then
        missing="$missing ${pair##*:}"
    fi
done
if [ -z "$missing" ]; then
    echo "tools of the tests of boxes: sshd, ssh and rsync are there"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "tools of the tests of boxes: no apt-get to install$missing; install them yourself"
    exit 0
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
# RUNLEVEL=1: the service of the package is not started.
if { $sudo apt-get update -qq && $sudo env RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $missing; } >/dev/null 2>&1; then
    echo "tools of the tests of boxes: installed$missing"
else
    echo "tools of the tests of boxes: apt-get could not install$missing; install them yourself"
fi
