// Package importm1 imports the users, workspaces and homes of codehub's first version.
//
// That version (its last migration is of December 2025) has a PostgreSQL database
// with the tables users, sessions and workspaces, ULIDs as ids, and a status for each
// workspace: CREATED, PROVISIONING, RUNNING, STOPPING, STOPPED, DELETING, ERROR,
// DELETED. Passwords are argon2id hashes of argon2-cffi. Homes are folders,
// users/{user}/workspaces/{workspace}/home below one folder, mounted at /home/coder
// into containers named codehub-ws-{workspace} without labels.
//
// A home is imported as an archive: it is packed into this installation's bucket as
// the first generation of its workspace, read back, and recorded in the transaction
// that creates the workspace. The controller then restores it like any other archive.
// So a home is copied once by one writer, and a copy that was not recorded is
// ignored and made again.
//
// The source is only read, except for its containers: they are stopped before their
// home is packed, and removed once the home is stored here.
package importm1
