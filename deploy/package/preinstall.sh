#!/bin/sh
set -e

# codehub runs a PostgreSQL of its own. If apt installs the package postgresql for it, that makes
# and starts no other database. This is here since dpkg puts a conffile in place only after that.
conf=/etc/postgresql-common/createcluster.d/codehub.conf
if [ "${1:-}" = install ] && [ -z "$(ls -A /etc/postgresql 2>/dev/null)" ] && [ ! -e $conf ]; then
	mkdir -p "${conf%/*}"
	cat >$conf <<-'EOF'
		# Written by the package codehub, which runs a PostgreSQL of its own: the package postgresql
		# makes and starts no database when it is installed.
		create_main_cluster = false
	EOF
fi
