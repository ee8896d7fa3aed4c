// Package bucket is one installation's part of the bucket with the archives: keys,
// lookups for the controller, how storage jobs reach the bucket, and listings for
// garbage collection and adoption.
//
// All keys begin with the installation's id, so that several installations can
// share a bucket:
//
//	{installation}/codehub.json                                  names the installation
//	{installation}/{workspace}/{archive_op_id}/home.tar.zst      an archive
//	{installation}/{workspace}/{archive_op_id}/home.tar.zst.meta its description; stored last, removed first
//	{installation}/database/{time}.backup.zst                    a backup of the database
//
// An object counts as missing only in a bucket that has codehub.json. An empty
// mount point, or a bucket of another name, proves nothing.
package bucket
