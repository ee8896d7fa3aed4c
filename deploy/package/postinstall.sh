#!/bin/sh
set -e

# dpkg calls this with "configure VERSION", rpm with the number of installed versions.
case "${1:-}" in
configure | 1 | 2) ;;
*) exit 0 ;;
esac

if ! getent group codehub >/dev/null; then
	groupadd --system codehub
fi
# Docker may be installed later; its package takes a group that is there.
if ! getent group docker >/dev/null; then
	groupadd --system docker
fi
if ! getent passwd codehub >/dev/null; then
	useradd --system --gid codehub --home-dir /var/lib/codehub --no-create-home \
		--shell /usr/sbin/nologin --comment codehub codehub
fi
usermod --append --groups docker codehub
chgrp codehub /etc/codehub /etc/codehub/codehub.env

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ -z "${2:-}" ] && [ "${1:-}" != 2 ]; then
		sysctl --quiet --load /usr/lib/sysctl.d/60-codehub.conf || :
		systemctl enable --quiet codehub.service
		systemctl start codehub.service || :
		echo "codehub serves on this machine. Its address and setup code: journalctl --unit codehub"
	else
		# Workspaces run on.
		systemctl try-restart codehub.service || :
	fi
else
	# In an image or a chroot: started at the next boot.
	ln -sf /usr/lib/systemd/system/codehub.service /etc/systemd/system/multi-user.target.wants/codehub.service 2>/dev/null || :
fi
