#!/bin/sh
# Installs what the tests of boxes and of deploy/ call, from Debian, where apt-get and the rights to use it are there:
# kubectl (it has Kustomize), an ssh server that listens on loopback addresses only while a test runs, and rsync.
# Says in one line what it did. Never fails: without a tool its tests are skipped, and say so.
missing=""
for pair in kubectl:kubernetes-client sshd:openssh-server ssh:openssh-client rsync:rsync; do
    if ! PATH="$PATH:/usr/sbin" command -v "${pair%%:*}" >/dev/null 2>&1; then
        missing="$missing ${pair##*:}"
    fi
done
if [ -z "$missing" ]; then
    echo "tools of the tests: kubectl, sshd, ssh and rsync are there"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "tools of the tests: no apt-get to install$missing; install them yourself"
    exit 0
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
# Debian 12 calls the package of kubectl kubernetes-client; `RUNLEVEL=1` keeps sshd's service from being started.
if { $sudo apt-get update -qq && $sudo env RUNLEVEL=1 apt-get install -qq -y --no-install-recommends $missing; } >/dev/null 2>&1; then
    echo "tools of the tests: installed$missing"
else
    echo "tools of the tests: apt-get could not install$missing; install them yourself"
fi
