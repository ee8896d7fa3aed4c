// Package embedded runs codehub's private PostgreSQL from the installed
// postgres binaries, inside the data folder (docs/database.md).
//
// Files in the data folder:
//
//	codehub.lock             held by the server that uses the folder
//	backups/                 dumps of the database, each from before a migration, 0700
//	postgres/                owned by the OS user postgres runs as, 0700
//	postgres/postgres.lock   held by postgres itself, and by initdb
//	postgres/data/           the cluster
//	postgres/data.new/       an incomplete cluster, renamed to data when complete
//	postgres/data.15-TIME/   a former cluster, which an upgrade or a restore has replaced
//	postgres/next/           the same files of the cluster that is going to replace it
//	postgres/run/            the Unix socket
//	postgres/log/            PostgreSQL's log, bounded in size
//
// postgres never runs as root. A server that is root starts it as the system user
// postgres, or as nobody if there is none. It passes the cluster as an open folder
// (/proc/self/fd/3), so the data folder may be inside folders that only root may enter.
//
// postgres has its own session and survives a killed server. The next server finds it
// by its socket, stops it and starts its own: the kernel reports the listening process, so a
// reused process id or a stale postmaster.pid is no problem. All processes of postgres inherit
// postgres.lock, which the kernel releases when the last of them has ended.
//
// postgres accepts connections only on the socket, with peer authentication: the
// server's OS user and that of postgres may log in as the role codehub. No other login
// is possible. The superuser is used only in single-user mode.
package embedded
