#!/bin/sh
set -e

# dpkg calls this with "configure" and the version that was configured before, if any; rpm with the
# number of installed versions.
case "${1:-} ${2:-}" in
"configure " | "1 ") first=yes ;;
configure* | 2*) first='' ;;
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

# systemd gives all of a StateDirectory to the unit's user, homes in folders as well.
if [ -n "$first" ] && [ -d /var/lib/codehub ] && [ "$(stat --format %U /var/lib/codehub)" != codehub ]; then
	echo "codehub is installed but not started: /var/lib/codehub belongs to another user, and codehub.service would"
	echo "give everything in it to the user codehub. Move the folder away, then: systemctl enable --now codehub"
	exit 0
fi
if [ ! -d /run/systemd/system ]; then
	# In an image or a chroot: started at the next boot.
	if [ -n "$first" ]; then
		mkdir -p /etc/systemd/system/multi-user.target.wants
		ln -sf /usr/lib/systemd/system/codehub.service /etc/systemd/system/multi-user.target.wants/codehub.service
	fi
	exit 0
fi
systemctl daemon-reload
if [ -n "$first" ]; then
	/usr/lib/systemd/systemd-sysctl 60-codehub.conf || :
	systemctl enable --quiet codehub.service
	if systemctl start codehub.service; then
		echo "codehub serves on this machine. Its address and setup code: journalctl --unit codehub"
	else
		echo "codehub is installed, but it did not start. The reason: journalctl --unit codehub"
	fi
elif systemctl is-enabled --quiet codehub.service; then
	# Workspaces run on. After a removal the server starts again.
	systemctl restart codehub.service || echo "codehub did not start. The reason: journalctl --unit codehub"
else
	systemctl try-restart codehub.service || :
fi
