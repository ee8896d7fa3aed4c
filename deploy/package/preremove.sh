#!/bin/sh
set -e

# dpkg calls this with "remove" or "upgrade VERSION", rpm with the number of versions that stay.
[ -d /run/systemd/system ] || exit 0
case "${1:-}" in
# dpkg keeps what was set up, that the server starts with the machine as well, until purge.
remove) systemctl stop codehub.service || : ;;
0) systemctl disable --quiet --now codehub.service || : ;;
esac
