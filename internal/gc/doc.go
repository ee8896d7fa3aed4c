// Package gc removes archives that nothing holds on to any more (design §3.9,
// docs/adr/0006). It lists the bucket, then asks the database, decides about
// each archive by itself in a pure function, and has every removal decided
// once more, and marked for good, while nobody can change the workspace.
//
// Only what this database recorded is ever removed. A complete archive that it
// does not know is recorded as found, and kept. Nothing is collected while the
// mark in the bucket is not this database's (package mark).
package gc
