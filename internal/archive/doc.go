// Package archive packs a home into an archive, unpacks it again exactly as it
// was, and keeps archives in a bucket: a folder or S3 (design §11 "Archives").
//
// An archive is home.tar.zst: a POSIX (PAX) tar, compressed with zstd, which
// any `tar --zstd` reads. What makes it ours is stricter than that and is what
// lets it be unpacked safely without looking at the disk:
//
//   - Entries are in the order of the tree: a folder, then all that is in it.
//     In what order those are is not said: Pack sorts the parts of a listing by
//     name, files before folders. The first is "./", the home itself; an archive
//     with nothing in it has no entries at all.
//   - Regular files, folders, symbolic and hard links; nothing else.
//   - Times to the nanosecond, names of any length and any bytes, ids and sizes
//     of any width by PAX records; extended attributes (user.*, POSIX ACLs,
//     file capabilities) as SCHILY.xattr.*, in the order in which the file system
//     lists them; sparse files in GNU's PAX format 1.0, with the holes that the
//     file system told of.
//   - Paths of at most 256 KiB, and 4 MiB for the path and attributes of one
//     entry. Of a home with more Pack makes no archive (ErrUnrestorable). A
//     reader takes paths of up to 4 MiB.
//   - The zstd stream is a row of independent frames of at most 4 MiB content,
//     so that both directions use all cores in bounded memory.
//
// Beside each archive lies its .meta, written last: what it is of, and what it
// must read back as. An archive without one is an upload that never ended.
package archive
