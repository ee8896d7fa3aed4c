#!/bin/sh
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
case "${1:-}" in
0) rm -f /etc/systemd/system/multi-user.target.wants/codehub.service ;;
purge)
	rm -f /etc/systemd/system/multi-user.target.wants/codehub.service
	rm -rf /etc/codehub /etc/postgresql-common/createcluster.d/codehub.conf
	;;
esac
case "${1:-}" in
remove | 0)
	echo "Workspaces, homes and archives are kept. To remove them as well, install codehub again and"
	echo "run: codehub-admin uninstall --dry-run"
	;;
purge)
	if [ -d /var/lib/codehub ]; then
		echo "/var/lib/codehub is kept: it has the database, and unless set otherwise archives and homes in folders."
	fi
	echo "Homes in volumes of Docker are kept: docker volume ls --filter label=codehub.installation"
	;;
esac
