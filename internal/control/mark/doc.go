// Package mark lets a server act only while its database, Docker and the bucket
// are from the same point in time.
//
// A mark is a random id with a serial. The leader stores one in its database, in
// Docker and in the bucket, and a new one every 20 s, at the start of each term,
// and soon after an undelete or a stored archive. A term begins with a
// comparison. The mark in Docker or the bucket is
//
//   - the database's own last one, or the one that it has announced: the term continues;
//   - missing, or an older one: Docker or the bucket lost data, or are new.
//     Nothing points to another database, so the term continues, and every wait
//     starts over;
//   - any other: another database has led since. Either this one was restored
//     from a backup, or it is a copy, or a copy of it has taken over. codehub goes
//     on hold: it does nothing until an administrator decides (package rollback).
//
// A copy of a database has the same marks as the original, until the original
// stores a new one. So a mark also carries the identity of the
// database and its files. If that is another one, the mark is watched for longer
// than a running original takes to replace it.
//
// See docs/adr/0008-a-restored-database-is-detected.md.
package mark
