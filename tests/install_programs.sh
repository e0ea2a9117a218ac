#!/bin/sh
# Installs the programs that tests start, from Debian, where apt-get and the rights to use it are there. No service is started: the
# tests start their own, on loopback. Says in a line for each what it did. Never fails: without a program its tests fail in
# `make test`, or are skipped and say so.
PATH="$PATH:/usr/sbin"
for folder in /usr/lib/postgresql/*/bin; do
    PATH="$PATH:$folder"
done
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
updated=""

found() {
    for name in "$@"; do
        command -v "$name" && return 0
    done
    return 1
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    # RUNLEVEL=1: the service of a package is not started.
    { [ -n "$updated" ] || $sudo apt-get -qq update; } >/dev/null 2>&1 || return 1
    updated=yes
    $sudo env RUNLEVEL=1 apt-get -qq install -y --no-install-recommends "$@" >/dev/null 2>&1
}

# ensure "PACKAGES" PROGRAM...: one of the programs is there, or the packages are installed.
ensure() {
    packages=$1
    shift
    if path=$(found "$@"); then
        echo "for the tests: $path is there"
    elif apt_install $packages; then
        echo "for the tests: installed $packages"
    else
        echo "for the tests: apt-get could not install $packages; install $1 yourself"
    fi
}

ensure "chromium fonts-dejavu-core" chromium chromium-browser google-chrome
ensure openssh-server sshd
ensure openssh-client ssh
ensure rsync rsync
# Debian's Postgres makes a database and starts it, unless it is told not to.
if ! found initdb >/dev/null && apt_install postgresql-common; then
    echo "create_main_cluster = false" | $sudo tee -a /etc/postgresql-common/createcluster.conf >/dev/null
fi
ensure postgresql initdb
