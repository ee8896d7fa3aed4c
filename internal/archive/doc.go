// Package archive is the format of an archive: it packs a home and unpacks it
// exactly as it was (docs/backup.md#archives). Package store keeps archives in a bucket.
//
// An archive is home.tar.zst: a POSIX (PAX) tar, compressed with zstd, which any
// `tar --zstd` reads. Further rules make it safe to unpack without a lookup on the
// disk:
//
//   - Entries are in tree order: a folder, then its content. The order within a
//     folder is unspecified: Pack sorts each part of a listing by name, files before
//     folders, and a folder named objects last. The first entry is "./", the home itself; an empty archive has no
//     entries.
//   - Regular files, folders, symbolic and hard links; nothing else.
//   - Times to the nanosecond, names of any length and any bytes, ids and sizes
//     of any width by PAX records; extended attributes (user.*, POSIX ACLs,
//     file capabilities) as SCHILY.xattr.*, in the order in which the file system
//     lists them; sparse files in GNU's PAX format 1.0, with the holes that the
//     file system reports.
//   - Paths of at most 256 KiB, and 4 MiB for the path and attributes of one
//     entry. Pack refuses a home with more (ErrUnrestorable). A reader
//     accepts paths of up to 4 MiB.
//   - The zstd stream is a sequence of independent frames of at most 4 MiB of
//     content, so that packing and unpacking use all cores in bounded memory.
//   - After it, in skippable frames, an index for readers of single files (docs/archives.md).
//     A restore does not need it, and archives of earlier versions have none.
//
// Each archive has a .meta, which is written last. An archive without one
// is an unfinished upload.
//
// A backup of a home that is in use is a Manifest for each generation, and packs with the content of
// all. A generation describes a tar by the same rules, so it is restored by the same code.
package archive
