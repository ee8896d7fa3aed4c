// Package gc removes archives that no workspace uses any more (docs/backup.md#archives,
// docs/adr/0006). It lists the bucket, then reads the database and decides about
// each archive in a pure function. Each removal is decided again and recorded while
// the workspace's row is locked.
//
// Only archives that this database recorded are ever removed. A complete archive
// that it does not know is recorded as found and kept. Nothing is collected while
// the mark in the bucket belongs to another database (package mark).
package gc
