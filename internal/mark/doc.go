// Package mark sees that a server only acts while its database, Docker and the
// bucket belong to the same moment.
//
// A mark is a random id with a serial. The leader stores one in its database, in
// Docker and in the bucket, and a new one every 20 s, at the start of each term,
// and soon after a deletion was taken back or an archive was stored. A term
// begins with a comparison. The mark outside is
//
//   - the database's own last one, or the one that it has announced: it goes on;
//   - missing, or an older one: Docker or the bucket lost something, or are new.
//     Nothing points to another database, so it goes on, and every wait begins
//     anew;
//   - any other: a database led since which this one knows nothing of. Either
//     this one was restored from a backup, or it is a copy, or a copy of it has
//     taken over. It is put on hold: nothing is done until an administrator has
//     decided (package rollback).
//
// A copy of a database has the same marks as the original, for as long as the
// original leaves no new one. So a mark also carries the identity of the
// database and its files. If that is another one, the mark is watched for longer
// than a running original takes to replace it.
//
// See docs/adr/0008-a-restored-database-shows.md.
package mark
