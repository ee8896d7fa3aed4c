// Package bucket is one installation's part of the bucket that archives are
// kept in: their keys, what the controller asks about them, how storage jobs
// reach them, and what garbage collection and adoption need to know.
//
// All of it lies under the installation's id, so that several may share a
// bucket:
//
//	{installation}/codehub.json                                  says whose this is
//	{installation}/{workspace}/{archive_op_id}/home.tar.zst      an archive
//	{installation}/{workspace}/{archive_op_id}/home.tar.zst.meta what it is of; stored last, removed first
//
// That an object is absent is believed only of a bucket that has codehub.json:
// an empty folder where a disk should be mounted, or a bucket of another name,
// has lost nobody's home.
package bucket
