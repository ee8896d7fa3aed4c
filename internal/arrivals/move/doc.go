// Package move moves users and workspaces of another installation here (`codehub move`).
// It reads the source through its API, and writes this installation's database and bucket.
//
// A workspace moves as an archive. The source archives it, and its archive is copied into
// this installation's bucket as a new generation, compared with the digest and size that
// the source recorded, and read back. Then one transaction records the workspace, its
// archive and its owner. The source removes its workspace only after that, and only if the
// workspace is still what was moved.
//
// Each step can be interrupted and repeated: a copy that was not recorded is removed and
// made again, and a workspace that was recorded is never changed again.
package move
