// Package adopt rebuilds what a database knew of its archives from the bucket
// alone, after the database was lost (`codehub adopt-archives`): a
// row for each workspace that has archives, with its newest complete one as the
// current one and the others as earlier ones, and its owner by name. It only
// ever adds, and can be run again.
//
// An empty database takes over the installation that the archives are of, so
// that the containers and volumes that are left of it are its own again. A
// database that has workspaces of its own gets copies of what another
// installation has archived, in its own part of the bucket: the other one, which
// may well be alive, keeps its own.
package adopt
