#!/bin/sh
set -e

# dpkg calls this with "remove" or "upgrade VERSION", rpm with the number of versions that stay.
case "${1:-}" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --quiet --now codehub.service || :
fi
