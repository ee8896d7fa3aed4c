// Package adopt rebuilds a lost database's records of its archives from the bucket
// (`codehub adopt-archives`): a row for each workspace with archives, the newest
// complete archive as the current one, the others as earlier ones, and the owner by
// name. It only adds rows, and can be run again.
//
// An empty database takes over the installation of the archives, so that the
// remaining containers and volumes are its own again. A database with workspaces of
// its own gets copies of another installation's archives in its own part of the
// bucket; the other installation, which may be running, keeps its archives.
package adopt
