#!/bin/sh
# Installs the browser of the tests of the pages, Debian's Chromium, where apt-get and the rights to use it are there.
# Says in one line what it did. Never fails: without a browser those tests are skipped, and say so.
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        echo "browser of the tests: $(command -v "$name")"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1; then
    echo "browser of the tests: none, and no apt-get to install one; install Chromium yourself"
    exit 0
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
if { $sudo apt-get update -qq && $sudo apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 &&
    command -v chromium >/dev/null 2>&1; then
    echo "browser of the tests: $(command -v chromium), installed now"
else
    echo "browser of the tests: none, apt-get could not install chromium; install it yourself"
fi
