// Package importm1 brings over what the first version of codehub kept: its
// users, its workspaces and their homes.
//
// That version (its last migration is of December 2025) has a PostgreSQL
// database with the tables users, sessions and workspaces, ULIDs for ids, and a
// status for each workspace: CREATED, PROVISIONING, RUNNING, STOPPING, STOPPED,
// DELETING, ERROR, DELETED. Passwords are argon2id as argon2-cffi makes them.
// Homes are folders, users/{user}/workspaces/{workspace}/home below one folder,
// mounted at /home/coder into containers named codehub-ws-{workspace} without
// labels.
//
// A home comes over as an archive: it is packed into this installation's bucket
// as the first generation of its workspace, read back, and recorded in the
// transaction that makes the workspace. Nothing here knows how volumes are
// made: the controller restores the home like any other, into whatever this
// installation keeps homes in. So a home is copied once and by one writer, and
// a copy that was not recorded counts for nothing and is made again from the
// start.
//
// The source is only read, its containers excepted: they are stopped before
// their home is packed, and removed once it is safe here.
package importm1
