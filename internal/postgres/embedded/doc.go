// Package embedded runs codehub's private PostgreSQL from the installed
// postgres binaries, inside the data folder (docs/database.md).
//
// What lies in the data folder:
//
//	codehub.lock             held by the server that uses the folder
//	postgres/                owned by the OS user postgres runs as, 0700
//	postgres/postgres.lock   held by postgres itself, and by initdb
//	postgres/data/           the cluster
//	postgres/data.new/       a cluster in the making, renamed to data when complete
//	postgres/run/            the Unix socket
//	postgres/log/            PostgreSQL's log, bounded in size
//
// postgres never runs as root. A server that is root starts it as the system
// user postgres, or nobody where there is none. The cluster is handed over as
// an open folder (/proc/self/fd/3), so it works below folders that only root
// may enter.
//
// postgres is in a session of its own and outlives a server that is killed.
// The next server finds it by its socket and adopts it: the kernel tells who
// listens there, so neither a reused process id nor a stale postmaster.pid can
// mislead. That no process of an earlier postgres is left is known from
// postgres.lock, which they inherit and the kernel releases with the last one.
//
// The only way in is the socket, with peer authentication: the server's OS user
// and the one postgres runs as may be the role codehub, and nobody may be
// anybody else. The superuser is for single-user mode alone.
package embedded
